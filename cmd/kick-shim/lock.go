package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// lock is the first stage where a container engine has built the sandbox: it
// gives up what the engine has left to it and becomes init, with an environment
// of its own, which is empty.
func lock() error {
	runtime.LockOSThread() // what is given up belongs to the thread
	cfg, err := frame.NewReader(os.Stdin).ReadConfig()
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	var j frame.Jail
	if err := json.Unmarshal(cfg.Jail, &j); err != nil {
		return fmt.Errorf("read the lock-down: %w", err)
	}
	if err := lockDown(j); err != nil {
		return err
	}
	err = unix.Exec("/proc/self/exe", []string{"kick-shim", "init"}, nil)
	return fmt.Errorf("execute the second stage: %w", err)
}
