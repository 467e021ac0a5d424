package deployment

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/atomicfile"
)

// failures are what a node records on its disk about a program that fails, so that a restart of the node does not reset the delays.
type failures struct {
	Object   types.UID `json:"object"`
	Revision string    `json:"revision"`
	InARow   int       `json:"inARow"`
	Until    time.Time `json:"until"` // when it is started again
}

const failuresName = "failures.json"

// inARow returns how many failures still count: none of a program that has been started again for long enough.
func (f failures) inARow(p v1alpha1.RestartPolicy, now time.Time) int {
	if Forgiven(p, now.Sub(f.Until)) {
		return 0
	}
	return f.InARow
}

func readFailures(dir string) (*failures, error) {
	return atomicfile.ReadJSON[failures](os.ReadFile, filepath.Join(dir, failuresName))
}

func writeFailures(dir string, f failures) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return atomicfile.WriteSecret(filepath.Join(dir, failuresName), data)
}

func forgetFailures(dir string) { _ = os.Remove(filepath.Join(dir, failuresName)) } // there may be none
