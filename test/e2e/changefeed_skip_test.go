package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// A changefeed that a statement has stopped continues after it once that is skipped; a stopped one also leaves out rows and DDL that are
// named, or everything up to a position.
func TestATransactionIsSkippedAndAChangefeedResumedLater(t *testing.T) {
	beside(t, heavy)
	source, sink := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	c := startNodes(t, newCluster(t, testenv.Ebb(t)).calm(), 2)
	if err := os.MkdirAll(c.dir.Credentials(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir.Credentials(), "pair"), []byte(source.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*testenv.MariaDB{source, sink} {
		m.Exec("CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)", "CREATE TABLE d.b (id INT PRIMARY KEY)", "CREATE DATABASE crm", "CREATE TABLE crm.a_copy LIKE d.a", "CREATE TABLE crm.b_copy LIKE d.b")
	}
	c.must("changefeed", "create", "f", "--source", "mysql://"+source.User+"@"+source.Address, "--source-password-file", "pair", "--sink", "mysql://"+sink.User+"@"+sink.Address, "--sink-password-file", "pair",
		"--filter", "d.*", "--route", "d.*=crm.{table}_copy")
	key := types.NamespacedName{Namespace: "default", Name: "f"}
	feed := func() v1alpha1.Changefeed {
		cf := v1alpha1.Changefeed{}
		if err := c.client.Get(context.Background(), key, &cf); err != nil {
			t.Fatal(err)
		}
		return cf
	}
	state := func(want v1alpha1.ChangefeedState) v1alpha1.ChangefeedStatus {
		t.Helper()
		until(t, "the changefeed to be "+string(want), func() bool { return feed().Status.State == want })
		return feed().Status
	}
	last := func() string { return source.Value("SELECT @@GLOBAL.gtid_binlog_pos") }
	rows := func(table, want string) {
		t.Helper()
		until(t, table+" to have "+want, func() bool {
			return sink.Value("SELECT COALESCE(GROUP_CONCAT(id ORDER BY id), '') FROM crm."+table) == want
		})
	}
	refused := func(words string, args ...string) {
		t.Helper()
		if _, why, code := c.run(args...); code == 0 || !strings.Contains(why, words) {
			t.Errorf("ebb %v: %d\n%s\nwant %s", args, code, why, words)
		}
	}
	state(v1alpha1.ChangefeedRunning)
	source.Exec("INSERT INTO d.a VALUES (1)")
	rows("a_copy", "1")
	refused("is running", "changefeed", "skip", "f", "--gtid", "0-1-99999")

	source.Exec("ALTER TABLE d.a ADD c INT /*M!101000 , ADD e INT */")
	unknown := last()
	source.Exec("INSERT INTO d.a (id) VALUES (2)", "INSERT INTO d.b VALUES (2)")
	if why := state(v1alpha1.ChangefeedFailed).Error; !strings.Contains(why, "it is not known what this statement does") {
		t.Fatal(why)
	}
	sink.Exec(source.Value("SELECT CONCAT('ALTER TABLE crm.a_copy ', GROUP_CONCAT('ADD ', COLUMN_NAME, ' INT' ORDER BY ORDINAL_POSITION)) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'd' AND TABLE_NAME = 'a' AND COLUMN_NAME <> 'id'"))
	c.must("changefeed", "skip", "f", "--gtid", unknown)
	refused("skips GTID "+unknown+" already", "changefeed", "skip", "f", "--gtid", unknown)
	c.must("changefeed", "resume", "f")
	rows("a_copy", "1,2")
	rows("b_copy", "2")
	until(t, "the skipped transaction to be passed", func() bool {
		s := feed().Status.Skip
		return len(s) == 1 && s[0].GTID == unknown && s[0].PassedAt != nil
	})

	c.must("changefeed", "pause", "f")
	state(v1alpha1.ChangefeedPaused)
	refused("can no longer be skipped", "changefeed", "skip", "f", "--gtid", "0-1-1")
	var skipped []string
	for _, s := range []string{"INSERT INTO d.a (id) VALUES (3)", "ALTER TABLE d.b ADD skipped INT", "CREATE TABLE d.skipped (id INT PRIMARY KEY)"} {
		source.Exec(s)
		skipped = append(skipped, last())
	}
	source.Exec("INSERT INTO d.a (id) VALUES (4)", "INSERT INTO d.b (id) VALUES (4)", "INSERT INTO d.skipped VALUES (4)")
	sink.Exec("ALTER TABLE crm.b_copy ADD skipped INT COMMENT 'by hand'", "CREATE TABLE crm.skipped_copy (id INT PRIMARY KEY) COMMENT 'by hand'")
	for _, gtid := range skipped {
		c.must("changefeed", "skip", "f", "--gtid", gtid)
	}
	c.must("changefeed", "resume", "f")
	rows("a_copy", "1,2,4")
	rows("b_copy", "2,4")
	rows("skipped_copy", "4")

	c.must("changefeed", "pause", "f")
	state(v1alpha1.ChangefeedPaused)
	source.Exec("INSERT INTO d.a (id) VALUES (5)", "ALTER TABLE d.a ADD gone INT", "ALTER TABLE d.a DROP gone", "INSERT INTO d.b (id) VALUES (5)")
	from := last()
	source.Exec("INSERT INTO d.a (id) VALUES (6)")
	refused("add --leave-out-transactions", "changefeed", "resume", "f", "--from", from)
	refused("never writes that again", "changefeed", "resume", "f", "--from", "0-1-1", "--leave-out-transactions")
	refused("needs --from", "changefeed", "resume", "f", "--leave-out-transactions")
	before := feed().Status.Checkpoint
	c.must("changefeed", "resume", "f", "--from", from, "--leave-out-transactions")
	rows("a_copy", "1,2,4,6")
	source.Exec("INSERT INTO d.b (id) VALUES (7)")
	rows("b_copy", "2,4,7")
	if r := feed().Status.ResumedFrom; r == nil || r.GTID != from || r.Checkpoint != before {
		t.Errorf("%+v, and the checkpoint was %d", r, before)
	}

	c.must("changefeed", "pause", "f")
	state(v1alpha1.ChangefeedPaused)
	c.must("changefeed", "skip", "f", "--gtid", "0-1-999999")
	c.must("changefeed", "resume", "f")
	if why := state(v1alpha1.ChangefeedFailed).Error; !strings.Contains(why, "spec.skip: GTID 0-1-999999 is after the newest transaction of the source") {
		t.Error(why)
	}
}
