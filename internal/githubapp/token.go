package githubapp

import (
	"fmt"
	"io"
	"time"
)

// redacted is all that any way of printing a Token shows.
const redacted = "ghs_…redacted"

// Token is an access token. Whatever prints, logs or encodes it shows
// "ghs_…redacted"; only Value gives the token itself. The zero Token is none.
type Token struct {
	// Printing a struct by reflection shows the contents of an unexported
	// string; of a function it shows an address.
	value func() string
	// Expires is when the token stops working. Zero: not known.
	Expires time.Time
	// Repository is the OWNER/NAME that an installation token is limited to.
	Repository string
	// Permissions are those that an installation token has.
	Permissions Permissions
	// DefaultBranch and Archived are what the server said of the repository.
	DefaultBranch string
	Archived      bool
}

// UserToken wraps a token that the operator supplied. It is never revoked by
// kick.
func UserToken(value string) Token { return Token{value: func() string { return value }} }

// Value returns the token.
func (t Token) Value() string {
	if t.value == nil {
		return ""
	}
	return t.value()
}

// IsZero reports whether there is no token.
func (t Token) IsZero() bool { return t.value == nil || t.value() == "" }

func (t Token) String() string { return redacted }

// Format implements fmt.Formatter, for every verb.
func (t Token) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText implements encoding.TextMarshaler, and with it JSON, XML and
// log/slog.
func (t Token) MarshalText() ([]byte, error) { return []byte(redacted), nil }
