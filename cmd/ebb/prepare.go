package main

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"
)

// newPrepare is what the init container of the DaemonSet runs: the image has no shell.
func newPrepare() *cobra.Command {
	var dir string
	var uid int
	cmd := &cobra.Command{
		Use:    "prepare --data-dir DIR --uid UID",
		Short:  "Create a data directory and give it to a user",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				return errNoDataDir
			}
			if uid < 1 {
				return fmt.Errorf("--uid %d: use the ID of a user that is not root", uid)
			}
			return prepare(dir, uid)
		},
	}
	addDataDir(cmd.Flags(), &dir)
	cmd.Flags().IntVar(&uid, "uid", 0, "user and group that own the directory (required)")
	_ = cmd.MarkFlagRequired("uid")
	return cmd
}

// prepare leaves a directory that belongs to the user already as it is: the container may not change what others own.
func prepare(dir string, uid int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) == uid {
		return nil
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	return os.Chown(dir, uid, uid)
}
