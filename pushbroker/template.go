package pushbroker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/kickhq/kick/policy"
)

// templateDirs are where a repository keeps its templates, in the order in
// which GitHub looks.
var templateDirs = []string{".github", "", "docs"}

// maxTemplate bounds a template, in bytes. GitHub takes 65,536 characters of a
// body, and kick's own part has up to 45,000.
const maxTemplate = 16 << 10

// templateAt reads the repository's template for pull requests: its default one,
// or the one that the policy names. Nothing of it is filled in. note says why
// one was left out.
func templateAt(ctx context.Context, files *baseFiles, name string) (text, note string, err error) {
	if name == policy.NoTemplate {
		return "", "", nil
	}
	for _, dir := range templateDirs {
		found, err := findTemplate(ctx, files, dir, name)
		if err != nil {
			return "", "", fmt.Errorf("look for a template of pull requests: %w", err)
		}
		if found == "" {
			continue
		}
		raw, err := files.read(found, maxTemplate)
		switch {
		case errors.Is(err, errTooLarge):
			return "", fmt.Sprintf("the repository's template %s has more than %d bytes and was left out", found, maxTemplate), nil
		case errors.Is(err, fs.ErrNotExist):
			return "", fmt.Sprintf("the repository's template %s is no regular file and was left out", found), nil
		case err != nil:
			return "", "", fmt.Errorf("read %s: %w", found, err)
		case !utf8.Valid(raw):
			return "", fmt.Sprintf("the repository's template %s is not UTF-8 and was left out", found), nil
		}
		text := strings.TrimSpace(visible(strings.ReplaceAll(string(raw), "\r\n", "\n"), true))
		if open := leftOpen(text); open != "" {
			return "", fmt.Sprintf("the repository's template %s was left out: %s in it is not closed and would hide what follows", found, open), nil
		}
		return text, "", nil
	}
	if name != "" {
		return "", fmt.Sprintf("the repository has no template %s in PULL_REQUEST_TEMPLATE, which the policy names", name), nil
	}
	return "", "", nil
}

// findTemplate returns the path of the template in dir, or "". GitHub does not
// mind the case of the names.
func findTemplate(ctx context.Context, files *baseFiles, dir, name string) (string, error) {
	names, err := files.List(ctx, dir)
	if err != nil {
		return "", err
	}
	for _, entry := range names {
		folded := strings.ToLower(entry)
		if name == "" {
			if base := strings.TrimSuffix(strings.TrimSuffix(folded, ".md"), ".txt"); base == "pull_request_template" && base != folded {
				return path.Join(dir, entry), nil
			}
			continue
		}
		if folded != "pull_request_template" {
			continue
		}
		inside, err := files.List(ctx, path.Join(dir, entry))
		if err != nil {
			return "", err
		}
		for _, file := range inside {
			if strings.EqualFold(file, name) {
				return path.Join(dir, entry, file), nil
			}
		}
	}
	return "", nil
}

// leftOpen names what a template does not close: it would take in what kick
// says after it.
func leftOpen(text string) string {
	fence := ""
	for line := range strings.Lines(text) {
		line = strings.TrimLeft(line, " ")
		run := line[:len(line)-len(strings.TrimLeft(line, line[:min(1, len(line))]))]
		switch {
		case len(run) < 3 || run[0] != '`' && run[0] != '~':
		case fence == "":
			fence = run
		case strings.HasPrefix(run, fence):
			fence = ""
		}
	}
	lower := strings.ToLower(text)
	switch {
	case fence != "":
		return "a code block"
	case strings.LastIndex(text, "<!--") > strings.LastIndex(text, "-->"):
		return "a comment"
	case strings.Count(lower, "<details") != strings.Count(lower, "</details"):
		return "a <details> block"
	}
	return ""
}
