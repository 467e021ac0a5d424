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

func TestWrongArgumentsSayHowACommandIsUsed(t *testing.T) {
	for args, want := range map[string]string{
		"drain":                "accepts 1 arg(s), received 0: use `ebb drain NODE [flags]`",
		"drain n1 n2":          "accepts 1 arg(s), received 2: use `ebb drain NODE [flags]`",
		"volume attach v":      "accepts 2 arg(s), received 1: use `ebb volume attach NAME NODE [flags]`",
		"settings set":         "requires at least 1 arg(s), only received 0: use `ebb settings set KEY=VALUE... [flags]`",
		"resign now":           "unknown command \"now\" for \"ebb resign\": use `ebb resign [flags]`",
		"drain n1 --frob":      "unknown flag: --frob: `ebb drain --help` lists the flags",
		"volume create v -z 1": "unknown shorthand flag: 'z' in -z: `ebb volume create --help` lists the flags",
	} {
		root := newRoot()
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		root.SetArgs(strings.Fields(args))
		if err := root.ExecuteContext(t.Context()); err == nil || err.Error() != want {
			t.Errorf("ebb %s: %v, want %s", args, err, want)
		}
	}
}
