package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// What a changefeed is to leave out is checked against the tables before it begins; then it copies and replicates all the rest, and DDL
// whose effect is not certain stops it.
func TestColumnsAndRowsAreLeftOut(t *testing.T) {
	beside(t, heavy)
	source, sink := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	c := startNodes(t, newCluster(t, testenv.Ebb(t)).calm(), 2)
	if err := os.MkdirAll(c.dir.Credentials(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir.Credentials(), "pair"), []byte(source.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	source.Exec("CREATE DATABASE d", "CREATE TABLE d.users (id INT PRIMARY KEY, name VARCHAR(20), mail VARCHAR(20) UNIQUE, password VARCHAR(20) NOT NULL)",
		"CREATE TABLE d.orders (id INT PRIMARY KEY, region INT, note TEXT)", "INSERT INTO d.users VALUES (1, 'a', 'a@x', 'secret')", "INSERT INTO d.orders VALUES (1, 7, 'x'), (2, 8, 'y'), (3, NULL, 'z')")
	create := func(name string, more ...string) {
		c.must(append([]string{"changefeed", "create", name, "--source", "mysql://" + source.User + "@" + source.Address, "--source-password-file", "pair",
			"--sink", "mysql://" + sink.User + "@" + sink.Address, "--sink-password-file", "pair", "--filter", "d.*", "--snapshot"}, more...)...)
	}
	feed := func() v1alpha1.Changefeed {
		cf := v1alpha1.Changefeed{}
		if err := c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: "f"}, &cf); err != nil {
			t.Fatal(err)
		}
		return cf
	}
	fails := func(words string) {
		t.Helper()
		until(t, "the changefeed to fail with "+words, func() bool {
			s := feed().Status
			return s.State == v1alpha1.ChangefeedFailed && strings.Contains(s.Error, words)
		})
	}
	leaves := func(patch string) {
		t.Helper()
		cf := feed()
		if err := c.client.Patch(context.Background(), &cf, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"leaveOut":[`+patch+`]}}`))); err != nil {
			t.Fatal(err)
		}
		c.must("changefeed", "resume", "f")
	}
	if _, why, code := c.run("changefeed", "create", "g", "--source", "mysql://u@h:1", "--sink", "mysql://u@h:2", "--leave-out-rows", "d.orders=region = other"); code == 0 || !strings.Contains(why, `a number or a text in single quotes is expected instead of "other"`) {
		t.Errorf("%d %s", code, why)
	}
	create("f", "--leave-out-column", "d.users.mail", "--leave-out-column", "d.users.password", "--leave-out-rows", "d.orders=region = 7")
	fails("leave out: table d.users: column mail is left out, and is a column of a primary or unique key; change spec.leaveOut, or the table at the source, or exclude the table by the filter")
	leaves(`{"match":"d.users","columns":["pasword"]}`)
	fails("leave out: table d.users: it has no column pasword; correct the name")
	leaves(`{"match":"d.orders","rows":"note = 'x'"}`)
	fails(`leave out: table d.orders: rows "note = 'x'": column note: its collation is`)
	if found := sink.Value("SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'd'"); found != "0" || feed().Status.StartPosition != nil {
		t.Fatalf("the sink has %s tables, and the changefeed began: %+v", found, feed().Status)
	}
	leaves(`{"match":"d.users","columns":["password"]},{"match":"d.orders","rows":"region = 7"}`)
	has := func(query, want string) {
		t.Helper()
		until(t, query+" to be "+want, func() bool {
			return sink.Value("SELECT EXISTS (SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'd' AND TABLE_NAME = 'users') AND EXISTS (SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'd' AND TABLE_NAME = 'orders')") == "1" && sink.Value(query) == want
		})
	}
	columns := "SELECT GROUP_CONCAT(COLUMN_NAME ORDER BY ORDINAL_POSITION) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'd' AND TABLE_NAME = 'users'"
	has("SELECT COALESCE(GROUP_CONCAT(id ORDER BY id), '') FROM d.orders", "2,3")
	has(columns, "id,name,mail")
	source.Exec("INSERT INTO d.users VALUES (2, 'b', 'b@x', 'secret')", "ALTER TABLE d.users ADD age INT, MODIFY password TEXT", "UPDATE d.users SET age = 5, password = 'other'",
		"INSERT INTO d.orders VALUES (4, 7, ''), (5, 9, '')", "UPDATE d.orders SET id = id + 10")
	has("SELECT COALESCE(GROUP_CONCAT(id ORDER BY id), '') FROM d.orders", "12,13,15")
	has(columns, "id,name,mail,age")
	has("SELECT COALESCE(GROUP_CONCAT(id, age ORDER BY id), '') FROM d.users", "15,25")

	source.Exec("ALTER TABLE d.users CHANGE password pass TEXT")
	fails(`statement "ALTER TABLE d.users CHANGE password pass TEXT": column password is left out and becomes pass, which is not, and the sink does not have its values`)
	has(columns, "id,name,mail,age")
	cf := feed()
	err := c.client.Patch(context.Background(), &cf, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"leaveOut":null}}`)))
	if err == nil || !strings.Contains(err.Error(), "leaveOut can be changed only before the changefeed begins") {
		t.Error(err)
	}
}
