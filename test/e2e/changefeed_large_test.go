package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// A transaction that is larger than the memory of its node is replicated all the same, also if the node dies in the middle.
func TestATransactionLargerThanTheMemoryIsReplicated(t *testing.T) {
	beside(t, heavy)
	rows, memory := 300_000, 16<<20
	if testlength.Long() {
		rows, memory = 3_000_000, 64<<20
	}
	source, sink := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	c := newCluster(t, testenv.EbbPlain(t)) // without the race detector, which takes memory of its own
	c.startServer()
	until(t, "the API server", func() bool { return c.connect() == nil })
	if err := os.MkdirAll(c.dir.Credentials(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir.Credentials(), "pair"), []byte(source.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	limit := []string{"--changefeed-memory", strconv.Itoa(memory)}
	node := c.startNode("n1", limit...)
	c.awaitReady("n1", 1)
	create := []string{"CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, s VARCHAR(40))", "CREATE TABLE d.small (id INT PRIMARY KEY)"}
	source.Exec(create...)
	sink.Exec(create...)
	ctx := context.Background()
	cf := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "large"}, Spec: v1alpha1.ChangefeedSpec{
		Source: "mysql://" + source.User + "@" + source.Address, SourcePasswordFile: "pair", Sink: "mysql://" + sink.User + "@" + sink.Address, SinkPasswordFile: "pair", Filter: []string{"d.*"},
	}}
	if err := c.client.Create(ctx, cf); err != nil {
		t.Fatal(err)
	}
	arrived := func() int {
		n, err := strconv.Atoi(sink.Value("SELECT COUNT(*) FROM d.t"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	until(t, "the changefeed to run", func() bool {
		return c.client.Get(ctx, client.ObjectKeyFromObject(cf), cf) == nil && cf.Status.State == v1alpha1.ChangefeedRunning
	})
	source.Exec("INSERT INTO d.small VALUES (1)")
	until(t, "the first row", func() bool { return sink.Value("SELECT COUNT(*) FROM d.small") == "1" })
	before := peak(t, node)
	source.Exec(fmt.Sprintf("USE d; BEGIN; INSERT INTO t SELECT seq, MD5(seq) FROM seq_1_to_%d; INSERT INTO small VALUES (2); UPDATE t SET s = 'changed' WHERE id %% 3 = 0; DELETE FROM t WHERE id %% 7 = 0; COMMIT", rows), "INSERT INTO d.t VALUES (-1, 'last')")
	until(t, "a part of the transaction", func() bool { return arrived() > 0 })
	if n := arrived(); n >= rows {
		t.Errorf("all %d rows came at once", n)
	}
	grown := peak(t, node) - before
	if err := node.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	node.awaitExit(t)
	node = c.startNode("n1", limit...)
	c.awaitReady("n1", 2)
	until(t, "the last row", func() bool { return sink.Value("SELECT COUNT(*) FROM d.t WHERE id = -1") == "1" })
	const sums = "SELECT CONCAT_WS(' ', COUNT(*), SUM(id), BIT_XOR(CRC32(CONCAT_WS(',', id, s)))) FROM d.t"
	if a, b := source.Value(sums), sink.Value(sums); a != b {
		t.Errorf("the source has %s, the sink %s", a, b)
	}
	grown = max(grown, peak(t, node)-before)
	t.Logf("%d changes in one transaction, %d MiB of memory for changes: the node grew from %d MiB by %d MiB", rows*5/3, memory>>20, before, grown)
	if bound := 5 * memory >> 20; testlength.Long() && grown > bound {
		t.Errorf("the node grew by %d MiB, more than %d", grown, bound)
	}
}

// peak is the largest memory that a process has taken, in MiB.
func peak(t *testing.T, p *process) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmHWM:" {
			kib, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
