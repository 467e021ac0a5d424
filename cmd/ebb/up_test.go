package main

import (
	"os"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/datadir"
)

func TestTheCommandsThatUpPrintsCanBeCopied(t *testing.T) {
	var b strings.Builder
	whatNext(&b, "/opt/e b/ebb", datadir.Dir("/tmp/my data"))
	for _, want := range []string{
		"  export EBB_DATA_DIR='/tmp/my data'\n",
		"  '/opt/e b/ebb' drain n2 --wait\n",
		"  kubectl --kubeconfig '/tmp/my data/kubeconfig' get nodes.ebb.dev -w\n",
		"  kill -9 $(cat '/tmp/my data/run/n1.pid')\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, b.String())
		}
	}
	if got := strings.ReplaceAll(b.String(), "'/tmp/my data", ""); strings.Contains(strings.SplitN(got, "Ctrl-C", 2)[0], "/tmp/my data") {
		t.Errorf("a path is not quoted:\n%s", b.String())
	}
}

func TestAProgramIsCalledFromEveryDirectory(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{"ebb": "ebb", "/opt/ebb": "/opt/ebb", "./ebb": here + "/ebb", "bin/ebb": here + "/bin/ebb"} {
		if got := callable(program); got != want {
			t.Errorf("%s is called %s, want %s", program, got, want)
		}
	}
}
