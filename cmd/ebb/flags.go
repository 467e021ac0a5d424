package main

import (
	"errors"
	"os"

	"github.com/spf13/pflag"
)

// envDataDir names the data directory for every command.
const envDataDir = "EBB_DATA_DIR"

var errNoDataDir = errors.New("no data directory: set --data-dir or in " + envDataDir)

func addDataDir(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "data-dir", os.Getenv(envDataDir), "data directory (default $"+envDataDir+")")
}
