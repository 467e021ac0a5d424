package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
)

// TestMain lets the test's executable be a node with toys, for the tests that start one.
func TestMain(m *testing.M) {
	if name := os.Getenv(toyNode); name != "" {
		if err := runToyNode(name, os.Getenv(toyDir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	quietLibraries() // before a test runs an API server in this process, whose libraries are the same
	os.Exit(m.Run())
}

// The README names every command that people run.
func TestTheREADMENamesEveryCommand(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range newRoot().Commands() {
		if !cmd.IsAvailableCommand() || cmd.Name() == "completion" {
			continue
		}
		if !bytes.Contains(readme, []byte("`ebb "+cmd.Name()+"`")) && !bytes.Contains(readme, []byte("`ebb "+cmd.Name()+" ")) {
			t.Errorf("README.md does not name `ebb %s`", cmd.Name())
		}
	}
}

func TestANameIsTakenWithItsNamespaceAsItIsPrinted(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // the namespace, and the arguments that the command sees; or an error
	}{
		{[]string{"show", "hello"}, "default [hello]"},
		{[]string{"show", "billing/hello", "x/y"}, "billing [hello x/y]"},
		{[]string{"show", "billing/hello", "-n", "billing"}, "billing [hello]"},
		{[]string{"show", "hello", "-n", "billing"}, "billing [hello]"},
		{[]string{"show"}, "default []"},
		{[]string{"show", "billing/hello", "-n", "default"}, "billing/hello names another namespace than --namespace default: omit one of them"},
		{[]string{"apply", "dir/file"}, "[dir/file]"},
	} {
		got, namespace := "", ""
		show := &cobra.Command{Use: "show", RunE: func(_ *cobra.Command, args []string) error {
			got = fmt.Sprintf("%s %v", namespace, args)
			return nil
		}}
		addNamespace(show.Flags(), &namespace, "default", "namespace")
		apply := &cobra.Command{Use: "apply", RunE: func(_ *cobra.Command, args []string) error {
			got = fmt.Sprint(args)
			return nil
		}}
		root := &cobra.Command{Use: "ebb", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(show, apply)
		acceptNamespaces(root)
		root.SetArgs(c.args)
		if err := root.Execute(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
}
