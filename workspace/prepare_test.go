package workspace

func task() Task {
	return Task{ID: "k0000000000001", Agent: "claude", Prompt: "Fix the bug.\n", Identity: Identity{Name: "kick", Email: "kick@example.org"}}
}
