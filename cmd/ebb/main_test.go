package main

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	quietLibraries() // before a test runs an API server in this process, whose libraries are the same
	os.Exit(m.Run())
}
