package exposure

import (
	"slices"
	"strings"
	"testing"
)

func TestConditions(t *testing.T) {
	t.Parallel()
	p := testPush()
	push := occurrence{event: "push"}
	opened := occurrence{event: "pull_request", action: "opened"}
	labeled := occurrence{event: "pull_request", action: "labeled", label: "kick-review"}
	target := occurrence{event: "pull_request_target", action: "opened"}
	after := occurrence{event: "workflow_run", via: "CI", viaEvent: "push"}
	for _, row := range []struct {
		o    occurrence
		want certainty
		ifs  []string
	}{
		{push, yes, []string{
			"", "true", "always()", "${{ always() }}", "!false", "github.event_name == 'PUSH'", "github.ref == 'refs/heads/kick/fixer/k0000000000001'",
			"startsWith(github.ref, 'refs/heads/')", "github.ref != 'refs/heads/main'", "github['ref_type'] == 'branch'", "github.repository == 'ACME/api'",
			"github.repository_owner == 'acme' && github.actor != 'dependabot[bot]'", "github.event.created", "!github.event.deleted", "!github.event.pull_request",
			"github.head_ref == ''", "contains(github.ref, 'kick')", "endsWith(github.ref_name, '1')", "github.event.number == null || true",
			"1 < 2 && 2 >= 2", "'1' == 1", "null == 0", "'' == false", "fromJSON('true')", "contains(fromJSON('[\"push\", \"x\"]'), github.event_name)",
			"github.ref == 'refs/heads/main' && 'x' || 'y'", "github.sha || true", "'it''s'", "github.event.sender.login != 'renovate[bot]'",
			"github.event.repository.full_name == github.repository",
		}},
		{push, no, []string{
			"false", "${{ false }}", "github.event_name == 'pull_request'", "github.ref == 'refs/heads/main'", "startsWith(github.ref, 'refs/tags/v')",
			"github.ref_type == 'tag'", "github.repository == 'other/repo'", "github.actor == 'dependabot[bot]'", "github.event.pull_request.draft",
			"github.event.action == 'opened'", "github.base_ref", "github.event_name == 'push' && github.ref_name == 'main'", "unknownFunction() && false",
			"'abc' == 0", "github.event.inputs.deploy", "github.event.release.prerelease", "!(true)", "contains('abc', 'd')", "github.event.schedule",
		}},
		{push, maybe, []string{
			"success()", "failure()", "vars.X", "vars.X == 'y'", "env.X != ''", "secrets.X != ''", "needs.a.outputs.b == 'true'", "inputs.x", "matrix.os == 'x'",
			"github.actor == 'olga'", "github.sha == 'x'", "contains(github.event.head_commit.message, '[ci skip]')", "github.ref == 'refs/heads/main' || vars.X",
			"vars.X && github.event_name == 'push'", "github.event.commits[0].message", "hashFiles('x')", "github.event.repository.private",
			"${{ false }} ", "${{ false }} && x", "x ==", "github.ref == \"x\"", "${{ github.ref", strings.Repeat("(", maxExprDepth+2) + "x" + strings.Repeat(")", maxExprDepth+2),
			"github[format('{0}', 'ref')] == 'x'", "1 < 'a'", "0x10 == 16", "contains(vars.LIST, 'x')", strings.Repeat("x", maxExpr+1),
		}},
		{opened, yes, []string{
			"github.event.action == 'opened'", "github.event.pull_request.head.repo.full_name == github.repository", "github.event.pull_request.head.repo.id == github.event.pull_request.base.repo.id",
			"github.base_ref == 'main'", "startsWith(github.head_ref, 'kick/')", "startsWith(github.ref, 'refs/pull/')", "startsWith(github.ref, 'refs/')", "!github.event.pull_request.merged",
			"github.event.pull_request.user.login != 'dependabot[bot]'", "github.event.pull_request", "github.event.pull_request.number", "github.ref != 'refs/heads/main'",
			"!contains(github.event.pull_request.labels.*.name, 'no-ci')",
		}},
		{opened, no, []string{
			"github.event_name == 'push'", "github.ref == 'refs/heads/main'", "startsWith(github.ref, 'refs/heads/')", "github.event.pull_request.merged == true",
			"github.event.pull_request.head.repo.full_name != github.repository", "github.event.label.name == 'x'", "github.head_ref == 'main'",
		}},
		{opened, maybe, []string{
			"github.event.pull_request.draft", "github.event.pull_request.draft == false", "github.event.pull_request.head.repo.fork", "github.ref == 'refs/pull/1/merge'",
			"startsWith(github.ref, 'refs/pull/1')", "github.event.pull_request.title == 'x'", "github.event.pull_request.author_association == 'MEMBER'",
		}},
		{labeled, yes, []string{"github.event.label.name == 'kick-review'", "contains(github.event.pull_request.labels.*.name, 'KICK-review')"}},
		{labeled, no, []string{"github.event.label.name == 'safe to test'"}},
		{labeled, maybe, []string{"contains(github.event.pull_request.labels.*.name, 'safe to test')"}},
		{target, maybe, []string{"github.ref == 'refs/heads/main'"}},
		{target, no, []string{"startsWith(github.ref, 'refs/pull/')"}},
		{after, yes, []string{"github.event.workflow_run.event == 'push'", "github.event.workflow_run.head_branch != 'main'", "github.event.workflow_run.head_repository.full_name == github.repository"}},
		{after, no, []string{"github.event.workflow_run.event == 'pull_request'", "github.event.workflow_run.head_branch == 'main'"}},
		{after, maybe, []string{"github.event.workflow_run.conclusion == 'success'"}},
	} {
		for _, s := range row.ifs {
			if got := (condition{text: s}).holds(p.scope(row.o)); got != row.want {
				t.Errorf("%s, on %s: %d, want %d", s, row.o, got, row.want)
			}
		}
	}
}

func TestRepositoryUnknown(t *testing.T) {
	t.Parallel()
	p := testPush()
	p.Repo = ""
	in := p.scope(occurrence{event: "pull_request", action: "opened"})
	for s, want := range map[string]certainty{
		"github.event.pull_request.head.repo.full_name == github.repository": yes,
		"github.repository == 'acme/api'":                                    maybe,
		"github.repository_owner == 'acme'":                                  maybe,
	} {
		if got := (condition{text: s}).holds(in); got != want {
			t.Errorf("%s: %d, want %d", s, got, want)
		}
	}
}

func TestSecretNames(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"${{ secrets.KEY }}":                                     "KEY",
		"a ${{ secrets.a }}-${{ Secrets['b'] }}":                 "A B",
		"${{ format('{0}}}', secrets.c) }}":                      "C",
		"${{ secrets[matrix.x] }}":                               "*",
		"${{ toJSON(secrets) }}":                                 "*",
		"${{ secrets.* }}":                                       "*",
		"${{ github.event.secrets.x }}":                          "",
		"secrets.KEY":                                            "",
		"${{ 'secrets.KEY' }}":                                   "",
		"${{ secrets.KEY":                                        "*",
		"${{ secrets.KEY ? }}":                                   "*",
		"${{ fromJSON(secrets.JSON).x }}":                        "JSON",
		"${{ needs[secrets.K].x }}":                              "K",
		"${{ secrets.GITHUB_TOKEN || secrets.OTHER_TOKEN }}":     "GITHUB_TOKEN OTHER_TOKEN",
		"${{ (github.event_name == 'push' && secrets.P).x[0] }}": "P",
	} {
		if got := secretNames(s); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %q, want %q", s, got, want)
		}
	}
}
