package policy

// The protected path classes. Patterns are those of Glob and match folded
// paths, on the old and the new side of every change, deletions too.
//
// Forges read their own directory only at the top of the repository; build and
// editor files act from wherever a tool is started, so those match at any depth.

var ciPaths = mustGlobs(
	"/.github/**", "/.gitlab/**", "/.gitlab-ci*", "/.forgejo/**", "/.gitea/**",
	"/.circleci/**", "/.buildkite/**", "/.tekton/**", "/.woodpecker*/**", "/.woodpecker*",
	"/.semaphore/**", "/.teamcity/**", "/.ci/**", "/.drone*", "/.travis.y*ml", "/.cirrus.*",
	"/bitbucket-pipelines.y*ml", "/codemagic.y*ml", "/.appveyor.y*ml", "/appveyor.y*ml",
	"/wercker.y*ml", "/netlify.toml", "/vercel.json", "/.zuul.*", "/zuul.*", "/.zuul.d/**", "/zuul.d/**",
	"/bitrise.y*ml", "/amplify.y*ml", "/render.y*ml", "/.azure-pipelines/**", "/.pipelines/**", "/.harness/**", "/.builds/**", "/.build.y*ml",
	"/.prow.y*ml", "/.prow/**", "/.ci-operator.y*ml", "/.packit.y*ml", "/packit.y*ml", "/.copr/**", "/.readthedocs.y*ml", "/readthedocs.y*ml",
	"Jenkinsfile*", "*.jenkinsfile", "azure-pipelines*", "cloudbuild*.y*ml", "buildspec*.y*ml",
	// A composite action is used from any directory: "uses: ./tools/x".
	"action.y*ml",
)

var governancePaths = mustGlobs(
	"CODEOWNERS", "OWNERS", "OWNERS_ALIASES", "MAINTAINERS*",
	"/LICENSE*", "/LICENCE*", "/COPYING*", "/NOTICE*", "/SECURITY*", "/docs/SECURITY*", "/GOVERNANCE*", "/.well-known/**",
	// Bots that merge, approve or review by these.
	"/.mergify.y*ml", "/.mergify/**", "/.kodiak.toml", "/bors.toml", "/.bulldozer.y*ml", "/.policy.y*ml", "/.pullapprove.y*ml", "/reviewpad.y*ml", "/.asf.y*ml",
	"/Dangerfile*", "/codecov.y*ml", "/.codecov.y*ml",
	// What security scanners leave out.
	".gitleaks.toml", ".gitleaksignore", ".trivyignore*", ".snyk", ".semgrepignore", ".secretlintrc*", ".secretlintignore", ".secrets.baseline", "osv-scanner.toml", "sonar-project.properties",
	"kick.y*ml", "/.kick/**",
)

var gitPaths = mustGlobs(".gitattributes", ".gitmodules", ".lfsconfig", ".mailmap", ".gitconfig", ".git-blame-ignore-revs")

var openPaths = mustGlobs(
	"**/.vscode/**", "**/.idea/**", "**/.devcontainer/**", ".devcontainer.json", "**/.zed/**", "**/.fleet/**",
	"**/.theia/**", "**/.direnv/**", ".envrc", "*.code-workspace", "*.sublime-project", ".gitpod.y*ml", ".gitpod.dockerfile",
	".exrc", ".nvimrc", ".nvim.lua", ".vimrc", ".lvimrc", ".dir-locals.el", ".dir-locals-2.el",
	".irbrc", ".pryrc", ".Rprofile", ".gdbinit", ".lldbinit", ".ycm_extra_conf.py", "**/.helix/**", "**/.codesandbox/**", ".stackblitzrc", "replit.nix",
	".project", "**/.externalToolBuilders/**", "**/nbproject/**",
	".autoenv*", ".replit", ".mise.toml", "mise.toml", "**/.mise/**", ".tool-versions", ".rtx.toml",
)

var buildPaths = mustGlobs(
	"Makefile*", "GNUmakefile", "*.mk", "justfile", ".justfile", "Taskfile*", "magefile*.go",
	"Dockerfile*", "*.dockerfile", "Containerfile*", "compose*.y*ml", "docker-compose*.y*ml", "docker-bake.*", "Vagrantfile", "Procfile", "Tiltfile", "skaffold.y*ml",
	"package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.y*ml", "pnpm-workspace.y*ml", ".pnpmfile.*", "bun.lock*", "bunfig.toml", "deno.json*", "deno.lock",
	".npmrc", ".yarnrc*", "**/.yarn/**",
	"setup.py", "setup.cfg", "pyproject.toml", "requirements*.txt", "constraints*.txt", "Pipfile*", "poetry.lock", "uv.lock", "uv.toml", "pdm.lock", "pip.conf", "pip.ini", ".pypirc", "conftest.py", "sitecustomize.py", "usercustomize.py", "*.pth", "tox.ini", "noxfile.py", "pytest.ini",
	"Cargo.toml", "Cargo.lock", "build.rs", "**/.cargo/**", "rust-toolchain*",
	"*.gradle", "*.gradle.kts", "gradlew*", "**/gradle/wrapper/**", "gradle.properties", "pom.xml", "**/.mvn/**", "mvnw*", "build.sbt", "build.xml",
	"go.mod", "go.sum", "go.work", "go.work.sum", "/vendor/modules.txt",
	"Gemfile*", "*.gemspec", "Rakefile", ".bundle/**", "composer.json", "composer.lock", "mix.exs", "mix.lock", "rebar.config", "rebar.lock", "Package.swift", "Package.resolved", "Podfile*", "pubspec.y*ml", "pubspec.lock",
	"CMakeLists.txt", "*.cmake", "CMakePresets.json", "meson.build", "configure", "configure.ac", "autogen.sh", "SConstruct",
	"BUILD", "BUILD.bazel", "WORKSPACE*", "MODULE.bazel*", ".bazelrc", ".bazelversion", "*.bzl", "flake.nix", "flake.lock", "default.nix", "shell.nix",
	"*.csproj", "*.fsproj", "*.vbproj", "*.vcxproj", "Directory.*.props", "Directory.*.targets", "NuGet.Config", "packages.lock.json", "global.json",
	".pre-commit-config.y*ml", "**/.husky/**", "**/.githooks/**", "lefthook*", ".lefthook*", "**/.lefthook/**", ".huskyrc*", ".lintstagedrc*",
	// Tools that a build, a test or a check starts load and run these.
	"astro.config.*", "ava.config.*", "babel.config.*", "commitlint.config.*", "craco.config.*", "cypress.config.*", "docusaurus.config.*", "drizzle.config.*",
	"esbuild.config.*", "eslint.config.*", "jest.config.*", "knip.config.*", "lint-staged.config.*", "metro.config.*", "next.config.*", "nuxt.config.*", "playwright.config.*",
	"postcss.config.*", "prettier.config.*", "quasar.config.*", "release.config.*", "remix.config.*", "rollup.config.*", "rsbuild.config.*", "rspack.config.*",
	"semantic-release.config.*", "snowpack.config.*", "stylelint.config.*", "svelte.config.*", "tailwind.config.*", "tsup.config.*", "vite.config.*", "vitest.config.*",
	"vue.config.*", "wdio.config.*", "webpack.*",
	".*rc.js", ".*rc.cjs", ".*rc.mjs", ".*rc.ts", "karma.conf.*", "gatsby-*.js", "gatsby-*.ts", "gulpfile.*", "Gruntfile.*",
	"angular.json", "nx.json", "turbo.json", "lerna.json", ".babelrc*", ".pylintrc", "pylintrc", ".coveragerc", ".rspec", ".rubocop.y*ml", "phpunit.xml*", ".php-cs-fixer*",
	"/tasks.py", "/fabfile.py", "Guardfile", "Earthfile", "wscript", "devbox.json", "devenv.nix", "buf.gen.y*ml", "/environment.y*ml",
	"/project/*.sbt", "project.clj", "deps.edn", "stack.y*ml", "*.cabal", "cabal.project*", "dune-project", "*.opam", "build.zig*", "Cartfile*", "/Project.toml", "/Manifest.toml",
	"release-please-config.json", ".release-please-manifest.json", "/.changeset/config.json",
	"renovate.json*", ".renovaterc*", "*.lock", "*.lock.hcl", ".releaserc*", ".goreleaser*", "goreleaser.y*ml", ".tool.toml",
)

var agentPaths = mustGlobs(
	"AGENTS.md", "AGENTS.override.md", "AGENT.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md", "SKILL.md", "copilot-instructions.md",
	".mcp.json", "mcp.json", ".cursorrules", ".cursorignore", "**/.cursor/**", "**/.claude/**", "**/.codex/**", "**/.agents/**", "**/.agent/**",
	".aider*", ".windsurfrules", "**/.windsurf/**", ".clinerules*", "**/.clinerules/**", "**/.roo/**", ".roomodes", ".roorules*", "**/.continue/**",
	"**/.gemini/**", "**/.kiro/**", "**/.junie/**", ".goosehints", "**/.goose/**", "**/.opencode/**", "opencode.json*", "**/.amazonq/**", "**/.openhands/**",
	"**/.augment/**", ".augment-guidelines", "**/.trae/**", "**/.qwen/**", "QWEN.md", "WARP.md", "CRUSH.md", "**/.crush/**", ".crush.json", "crush.json",
	"/.rules", "**/.jules/**", "**/.devin/**", "**/.factory/**", "**/.ruler/**", "**/.rulesync/**", "**/.windsurf*", "CONVENTIONS.md", "llms*.txt", "replit.md", "*.mdc", "*.instructions.md", "*.prompt.md", "*.chatmode.md", "*.agent.md",
)

var testPaths = mustGlobs(
	"**/test/**", "**/tests/**", "**/__tests__/**", "**/spec/**", "*_test.*", "test_*.*", "*.test.*", "*.spec.*", "*_spec.*", "*Test.java", "*Tests.cs",
)
