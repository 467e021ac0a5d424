package changefeed_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// A node reads a password from a Secret in the namespace of the changefeed each time, and its errors name what is missing.
func TestAPasswordIsReadFromASecretBeforeEachOpening(t *testing.T) {
	api := testenv.StartAPI(t)
	admin, ctx := api.Admin(), context.Background()
	o := changefeed.Opener{Secret: changefeed.SecretsOf(api.Client(api.Node("n1").Kubeconfig()))}
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE USER rotated@'%' IDENTIFIED BY 'first-secret'", "GRANT ALL ON *.* TO rotated@'%'")
	server := "mysql://rotated@" + m.Address
	config := dispatch.Config{Source: server, Sink: server, Workers: 1, SourceSecret: dispatch.SecretRef{Name: "db", Key: "password"}, SinkSecret: dispatch.SecretRef{Name: "db", Key: "password"}}

	fails := func(what, want string, c dispatch.Config) {
		t.Helper()
		if _, err := o.Resolve(ctx, "default", c); message(err) != want {
			t.Errorf("%s:\ngot  %s\nwant %s", what, message(err), want)
		}
	}
	fails("no Secret", "password of the source: there is no Secret \"db\" in namespace \"default\": create it with key \"password\", for example with `kubectl create secret generic db -n default --from-file=password=FILE`", config)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"}, StringData: map[string]string{"password": "first-secret\n", "empty": "\n"}}
	if err := admin.Create(ctx, secret); err != nil {
		t.Fatal(err)
	}
	other := config
	other.SinkSecret.Key = "pass"
	fails("no such key", `password of the sink: there is no key "pass" in Secret "db" in namespace "default": add it, or name another key in the changefeed`, other)
	other.SinkSecret.Key = "empty"
	fails("an empty key", `password of the sink: key "empty" of Secret "db" in namespace "default" is empty: set it to the password, or remove the Secret from the changefeed`, other)

	check := func(password string) {
		t.Helper()
		c, err := o.Resolve(ctx, "default", config)
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprintf("%v %+v %#v %s", c, c, c, c.SourcePassword); strings.Contains(text, password) {
			t.Errorf("a printed configuration shows the password: %s", text)
		}
		source, err := o.Source(c)
		if err != nil {
			t.Fatal(err)
		}
		defer source.Close()
		sink, err := o.Sink(dispatch.FeedKey{Namespace: "default", Name: "f", UID: "1"}, c)
		if err != nil {
			t.Fatal(err)
		}
		defer sink.Close()
		for _, err := range []error{source.Check(ctx), sink.Check(ctx)} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	check("first-secret")
	m.Exec("ALTER USER rotated@'%' IDENTIFIED BY 'second-secret'")
	secret.Data["password"] = []byte("second-secret")
	if err := admin.Update(ctx, secret); err != nil {
		t.Fatal(err)
	}
	check("second-secret")

	if _, err := o.Source(config); err == nil {
		t.Error("a source was opened without the password that its Secret has")
	}
}
