package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// A cluster with every kind of work is run, cut off from its API for a while and stopped; the libraries have a good deal to say.
func TestEveryLineOfALogInJSONIsJSON(t *testing.T) {
	beside(t, heavy)
	c := newCluster(t, testenv.Ebb(t))
	c.runUp(3, "--samples", "--log-format", "json", "--log-level", "debug")
	until(t, "the etcd cluster to run", func() bool { return strings.Contains(c.must("status"), "\n1 etcd cluster: as it should be\n") })
	speakNonsense(t, c.node("n1").Status.HTTPAddress)
	cfg, err := kubeclient.Load(c.dir.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	speakNonsense(t, cfg.Host)
	c.signal("apiserver", syscall.SIGKILL)
	until(t, "every node to log that something is wrong", func() bool {
		for _, name := range []string{"n1", "n2", "n3"} {
			if !logged(t, c.dir.LogFile(name), "WARN") {
				return false
			}
		}
		return true
	})
	again := c.start("apiserver", "--data-dir", string(c.dir), "--log-format", "json", "--log-level", "debug")
	until(t, "the API server to be back", func() bool { return c.connect() == nil })
	second, errs, code := c.run("apiserver", "--data-dir", string(c.dir), "--log-format", "json") // its directory is locked
	if code != 1 || !strings.Contains(errs, "the process exits because of an error") {
		t.Errorf("exit %d: %s%s", code, second, errs)
	}
	c.up.stop()
	again.stop()
	if !strings.Contains(c.up.out.String(), "start it again with: "+c.ebb+" apiserver --data-dir "+string(c.dir)+" --log-format=json --log-level=debug\n") {
		t.Errorf("ebb up does not say how to start the API server again with the same log:\n%s", c.up.out)
	}
	everyLineIsJSON(t, "a second API server", errs)
	everyLineIsJSON(t, "the API server that came back", again.out.String())
	files := 0
	for _, pattern := range []string{"logs/*.log", "nodes/*/programs/*/*/shim.log", "nodes/*/etcd/*/*.log", "nodes/*/etcd/*/*/*.log"} {
		names, err := filepath.Glob(filepath.Join(string(c.dir), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files++
			everyLineIsJSON(t, name, string(text))
		}
	}
	if files < 4+4 {
		t.Errorf("only %d logs were found", files)
	}
}

// speakNonsense opens a connection and speaks something that is not TLS.
func speakNonsense(t *testing.T, address string) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "this is not TLS\r\n\r\n")
	_, _ = conn.Read(make([]byte, 1)) // it answers or hangs up
}

// logged says whether a log has a line of a level.
func logged(t *testing.T, file, level string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(text), `"level":"`+level+`"`)
}

func everyLineIsJSON(t *testing.T, name, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Errorf("%s: %v: %q", name, err, line)
		} else if object["msg"] == nil || object["level"] == nil {
			t.Errorf("%s: a line without msg or level: %s", name, line)
		}
	}
}

func TestALogFormatOrLevelThatDoesNotExistIsRefused(t *testing.T) {
	beside(t, heavy)
	c := newCluster(t, testenv.Ebb(t))
	for _, command := range [][]string{{"up"}, {"apiserver"}, {"node", "--name", "n1"}, {"etcd-member"}} {
		for flag, want := range map[string]string{
			"--log-format=xml": `ebb: invalid argument "xml" for "--log-format" flag: "xml" is not a log format: use text or json` + "\n",
			"--log-level=loud": `ebb: invalid argument "loud" for "--log-level" flag: "loud" is not a log level: use debug, info, warn or error` + "\n",
		} {
			if out, errs, code := c.run(append(command, flag)...); code != 1 || out+errs != want {
				t.Errorf("ebb %s %s: exit %d: %s%s", strings.Join(command, " "), flag, code, out, errs)
			}
		}
	}
}
