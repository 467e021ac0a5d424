package main

import (
	"os"

	"github.com/spf13/pflag"
)

// envDataDir names the data directory for every command.
const envDataDir = "EBB_DATA_DIR"

func addDataDir(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "data-dir", os.Getenv(envDataDir), "data directory (default $"+envDataDir+")")
}
