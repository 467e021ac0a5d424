package testenv

import (
	"path/filepath"
	"syscall"

	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/shim"
)

// EndPrograms kills the programs of a namespace, or of all with "*", that nodes of a data directory left running: daemons outlive nodes
// that were killed.
func EndPrograms(dir datadir.Dir, namespace string) {
	states, _ := filepath.Glob(filepath.Join(dir.Node("*").Programs(), namespace, "*", "state.json"))
	for _, state := range states {
		if st, err := shim.ReadState(filepath.Dir(state)); err == nil && st.Phase != shim.Exited && st.Shim.Runs() {
			_ = syscall.Kill(st.Shim.PID, syscall.SIGKILL) // everything of the program ends with it
		}
	}
}
