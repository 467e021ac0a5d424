package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
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
