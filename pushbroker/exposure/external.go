package exposure

import (
	"context"
	"fmt"
	"path"
	"slices"
)

// Service is a service beside GitHub Actions that the repository is set up for.
type Service struct {
	Name string `json:"name"` // as the policy's ci.external names it
	Path string `json:"path"` // of its configuration
}

// services are known by their files.
var services = []Service{
	{"appveyor", "appveyor.yml"}, {"appveyor", ".appveyor.yml"},
	{"azure-pipelines", "azure-pipelines.yml"}, {"azure-pipelines", ".azure-pipelines"},
	{"bitbucket", "bitbucket-pipelines.yml"},
	{"buildkite", ".buildkite"},
	{"circleci", ".circleci"},
	{"cirrus", ".cirrus.yml"},
	{"cloud-build", "cloudbuild.yaml"}, {"cloud-build", "cloudbuild.yml"},
	{"codebuild", "buildspec.yml"},
	{"drone", ".drone.yml"},
	{"gitlab", ".gitlab-ci.yml"},
	{"jenkins", "Jenkinsfile"},
	{"netlify", "netlify.toml"},
	{"semaphore", ".semaphore"},
	{"tekton", ".tekton"},
	{"travis", ".travis.yml"},
	{"vercel", "vercel.json"},
	{"woodpecker", ".woodpecker.yml"}, {"woodpecker", ".woodpecker"},
}

// External finds the services that a commit's files name.
func External(ctx context.Context, tree Tree) ([]Service, error) {
	names, err := tree.List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list the repository: %w", err)
	}
	found := []Service{}
	for _, s := range services {
		if slices.Contains(names, path.Base(s.Path)) && !slices.ContainsFunc(found, func(f Service) bool { return f.Name == s.Name }) {
			found = append(found, s)
		}
	}
	return found, nil
}
