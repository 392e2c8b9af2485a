#!/bin/sh
# The rules of the GitHub stand-in, with GitHub's words. They are read from the
# repository's configuration; the permissions of the pusher's token come in the
# environment, and the reason for the ref is left in $GITHUBTEST_REASON, from
# where the server puts it into the report.
refuse() { printf '%s' "$1" >"$GITHUBTEST_REASON"; exit 1; }

violations() {
	echo "error: GH013: Repository rule violations found for $1."
}

while read -r old new ref; do
	case $new in *[!0]*) ;; *) continue ;; esac

	for protected in $(git config --get-all githubtest.protected); do
		case $ref in
		$protected)
			echo "error: GH006: Protected branch update failed for $ref."
			echo "error: Changes must be made through a pull request."
			refuse "protected branch hook declined"
			;;
		esac
	done

	broken=$(git config --get-all githubtest.rule | while read -r pattern words; do
		case $ref in $pattern) echo "- $words"; echo ;; esac
	done)
	if [ -n "$broken" ]; then
		violations "$ref"
		echo "Review all repository rules at $GITHUBTEST_URL/rules?ref=$(printf %s "$ref" | sed 's|/|%2F|g')"
		echo
		echo "$broken"
		echo
		refuse "push declined due to repository rule violations"
	fi

	commits=$(git rev-list --reverse "$new" --not --all)

	if [ "$GITHUBTEST_WORKFLOWS" != write ]; then
		for c in $commits; do
			path=$(git -c core.quotePath=false diff-tree -r -m --root --no-renames --no-commit-id --name-only "$c" -- .github/workflows | head -n 1)
			if [ -n "$path" ]; then
				refuse "refusing to allow $GITHUBTEST_ACTOR to create or update workflow \`$path\` without \`$GITHUBTEST_SCOPE\` $GITHUBTEST_SCOPEKIND"
			fi
		done
	fi

	if [ "$(git config --get githubtest.pushprotection)" = true ]; then
		found=
		kinds="AKIA[0-9A-Z]{16}|Amazon AWS Access Key ID
ghp_[0-9A-Za-z]{36}|GitHub Personal Access Token
$(git config --get-all githubtest.secret)"
		while IFS= read -r kind; do
			[ -n "$kind" ] || continue
			locations=$(for c in $commits; do
				git grep -n -a -E -e "${kind%|*}" "$c" -- | while IFS=: read -r commit path line rest; do
					echo "         - commit: $commit"
					echo "           path: $path:$line"
				done
			done)
			[ -n "$locations" ] || continue
			found="$found
      —— ${kind#*|} ——————————————————————————
       locations:
$locations

       (?) To push, remove secret from commit(s) or follow this URL to allow the secret.
       $GITHUBTEST_URL/security/secret-scanning/unblock-secret/2hXvEc0mp1eRvxyJtKTVX2ZQa7K
"
		done <<-END
			$kinds
		END
		if [ -n "$found" ]; then
			violations "$ref"
			echo
			cat <<-'END'
			- GITHUB PUSH PROTECTION
			  —————————————————————————————————————————
			    Resolve the following violations before pushing again

			    - Push cannot contain secrets


			     (?) Learn how to resolve a blocked push
			     https://docs.github.com/code-security/secret-scanning/working-with-secret-scanning-and-push-protection/working-with-push-protection-from-the-command-line#resolving-a-blocked-push


			END
			echo "$found"
			refuse "push declined due to repository rule violations"
		fi
	fi
done
exit 0
