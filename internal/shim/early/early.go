// Package early turns the process into a shim before anything else of the program is initialized.
//
// The ebb program links all of Kubernetes, whose packages allocate tens of megabytes as they initialize; a machine runs a
// shim for every program. Importing this package from main is all it takes: the language initializes packages in the
// order of their import paths as soon as their own imports are ready, and this one imports only the standard library and
// the shim, which does the same.
package early

import (
	"os"

	"github.com/ebb-dev/ebb/internal/shim"
)

// Command is the first argument that asks for a shim.
const Command = "shim"

func init() {
	if len(os.Args) > 1 && os.Args[1] == Command && !(len(os.Args) == 3 && (os.Args[2] == "--help" || os.Args[2] == "-h")) {
		os.Exit(shim.Main(os.Args[2:]))
	}
}
