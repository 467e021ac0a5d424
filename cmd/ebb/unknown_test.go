package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every command that only has subcommands refuses one that it does not have.
func TestAnUnknownSubcommandIsAnError(t *testing.T) {
	var paths [][]string
	var walk func(cmd *cobra.Command, path []string)
	walk = func(cmd *cobra.Command, path []string) {
		if cmd.HasSubCommands() {
			paths = append(paths, path)
		}
		for _, sub := range cmd.Commands() {
			walk(sub, append(path[:len(path):len(path)], sub.Name()))
		}
	}
	walk(newRoot(), nil)
	if len(paths) < 6 {
		t.Fatalf("only %v have subcommands", paths)
	}
	for _, path := range paths {
		t.Run(strings.Join(append([]string{"ebb"}, path...), " "), func(t *testing.T) {
			root := newRoot()
			root.SetOut(io.Discard)
			root.SetErr(io.Discard)
			root.SetArgs(append(path[:len(path):len(path)], "frob"))
			err := root.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), `unknown command "frob"`) {
				t.Errorf("it ends with %v", err)
			}
		})
	}
}
