package config

import (
	"bytes"
	"encoding/json"
)

// object is a JSON object of a schema.
type object map[string]any

// Schema returns the JSON Schema of kick.yaml, for editors and other programs.
// It is made from the rows that the reader uses. A schema cannot say
// everything: Load also refuses credentials, duplicates and sizes out of range.
func Schema() []byte {
	s := mappingSchema(topFields)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "kick.yaml"
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s); err != nil {
		panic(err) // the rows hold nothing that JSON cannot
	}
	return buf.Bytes()
}

func mappingSchema[T any](fields []field[T]) object {
	properties := object{}
	for _, f := range fields {
		p := object{"description": f.doc}
		for k, v := range f.schema {
			p[k] = v
		}
		properties[f.key] = p
	}
	return object{"type": []string{"object", "null"}, "additionalProperties": false, "properties": properties}
}

var agentsSchema = func() object {
	agent := mappingSchema(agentFields)
	agent["not"] = object{"type": "object", "required": []string{"command", "kind"}}
	return object{
		"type":                 []string{"object", "null"},
		"propertyNames":        object{"pattern": agentName.String()},
		"additionalProperties": agent,
	}
}()
