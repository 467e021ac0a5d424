package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// A changed filter is pending until the changefeed is resumed, and a table that it adds must have been copied.
func TestAChangedFilterAppliesOnResume(t *testing.T) {
	beside(t, heavy)
	source, sink := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	c := startNodes(t, newCluster(t, testenv.Ebb(t)).calm(), 1)
	if err := os.MkdirAll(c.dir.Credentials(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir.Credentials(), "pair"), []byte(source.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*testenv.MariaDB{source, sink} {
		m.Exec("CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)", "CREATE TABLE d.b (id INT PRIMARY KEY)")
	}
	source.Exec("INSERT INTO d.b VALUES (1)")
	ctx, key := context.Background(), types.NamespacedName{Namespace: "default", Name: "f"}
	if err := c.client.Create(ctx, &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: v1alpha1.ChangefeedSpec{
		Source: "mysql://" + source.User + "@" + source.Address, SourcePasswordFile: "pair", Sink: "mysql://" + sink.User + "@" + sink.Address, SinkPasswordFile: "pair", Filter: []string{"d.a"},
	}}); err != nil {
		t.Fatal(err)
	}
	status := func() v1alpha1.ChangefeedStatus {
		cf := &v1alpha1.Changefeed{}
		if err := c.client.Get(ctx, key, cf); err != nil {
			t.Fatal(err)
		}
		return cf.Status
	}
	state := func(want v1alpha1.ChangefeedState) v1alpha1.ChangefeedStatus {
		t.Helper()
		var last v1alpha1.ChangefeedStatus
		until(t, "the changefeed to be "+string(want), func() bool { last = status(); return last.State == want })
		return last
	}
	state(v1alpha1.ChangefeedRunning)
	source.Exec("INSERT INTO d.a VALUES (1)")
	until(t, "the first row", func() bool { return sink.Value("SELECT COUNT(*) FROM d.a") == "1" })

	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"filter":["d.*"]}}`))
	if err := c.client.Patch(ctx, &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}, patch); err != nil {
		t.Fatal(err)
	}
	until(t, "the filter to be pending", func() bool {
		f := status().Filter
		return f != nil && f.Pending && len(f.Patterns) == 1 && f.Patterns[0] == "d.a"
	})
	if out := c.must("status", "changefeeds"); !strings.Contains(out, "the filter has changed; pause and resume to apply it") {
		t.Error(out)
	}
	source.Exec("INSERT INTO d.b VALUES (2)", "INSERT INTO d.a VALUES (2)")
	until(t, "a row of the table inside", func() bool { return sink.Value("SELECT COUNT(*) FROM d.a") == "2" })
	if n := sink.Value("SELECT COUNT(*) FROM d.b"); n != "0" {
		t.Errorf("%s rows outside the filter that is in effect", n)
	}

	c.must("changefeed", "pause", "f")
	state(v1alpha1.ChangefeedPaused)
	c.must("changefeed", "resume", "f")
	refused := state(v1alpha1.ChangefeedFailed).Error
	_, statement, found := strings.Cut(refused, "record the position of the copy by ")
	statement, _, _ = strings.Cut(statement, " at the sink")
	if !found || !strings.Contains(refused, "table d.b was added by the filter") {
		t.Fatal(refused)
	}
	gtid := source.Value("SELECT @@GLOBAL.gtid_binlog_pos")
	sink.Exec("INSERT INTO d.b VALUES (1), (2)", strings.ReplaceAll(statement, "POSITION", gtid[strings.LastIndex(gtid, "-")+1:]))
	source.Exec("INSERT INTO d.b VALUES (3)")
	c.must("changefeed", "resume", "f")
	until(t, "a row of the added table", func() bool { return sink.Value("SELECT GROUP_CONCAT(id ORDER BY id) FROM d.b") == "1,2,3" })
	if f := state(v1alpha1.ChangefeedRunning).Filter; f == nil || f.Pending || len(f.Patterns) != 1 || f.Patterns[0] != "d.*" {
		t.Errorf("%+v", f)
	}
}
