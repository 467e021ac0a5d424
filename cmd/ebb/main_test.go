package main

import (
	"fmt"
	"os"
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
