package apiserver_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
)

const changefeeds = "/apis/ebb.dev/v1alpha1/namespaces/default/changefeeds"

func changefeedObject(spec object) object { return ebb("Changefeed", fresh("feed")).with("spec", spec) }

func TestAPasswordInAURLIsRefusedByTheSchema(t *testing.T) {
	admin := api(t).admin(t)
	words := func(end string) string {
		return "remove the password from the URL, where everybody who may read the object sees it; name a Secret in " + end + "PasswordSecretRef or a file in " + end + "PasswordFile"
	}
	for _, url := range []string{
		"mysql://u:hunter2@db:3306", "mysql://u:hunter2@db", "mysql://:hunter2@db:3306", "mysql://u@x:hunter2@db:3306", "mysql://u:hunter2/x@db:3306",
		"mysql://u:hunter2#x@db:3306", "mysql://u:@db:3306", "mysql://u@db:3306?password=hunter2", "mysql://u@db:3306?tls=true&PASSWD=hunter2", "datagen://u:hunter2@?tables=1",
	} {
		for end, spec := range map[string]object{
			"source": {"source": url, "sink": "blackhole://"}, "sink": {"source": "datagen://?tables=1", "sink": url},
		} {
			a := admin.do(t, http.MethodPost, changefeeds, changefeedObject(spec))
			if a.code != http.StatusUnprocessableEntity || !strings.Contains(a.message(), words(end)) {
				t.Errorf("%s %s: %s", end, url, a)
			}
			if bytes.Contains(a.body, []byte("hunter2")) {
				t.Errorf("%s %s: the answer tells the password: %s", end, url, a)
			}
		}
	}
	for _, url := range []string{"mysql://u@db:3306", "mysql://u@db:3306?tls-ca=a@b:c", "mysql://u@[::1]:3306", "datagen://?tables=1", "file:///a:b@c", "blackhole://"} {
		invalid(t, admin.do(t, http.MethodPost, changefeeds, changefeedObject(object{"source": url, "sink": url})))
	}
}

func TestAPasswordIsInAFileOrInASecret(t *testing.T) {
	admin := api(t).admin(t)
	spec := func(more object) object {
		all := object{"source": "mysql://u@db:3306", "sink": "mysql://u@db:3306"}
		for k, v := range more {
			all[k] = v
		}
		return changefeedObject(all)
	}
	ref := object{"name": "db"}
	for _, end := range []string{"source", "sink"} {
		file, secret := end+"PasswordFile", end+"PasswordSecretRef"
		invalid(t, admin.do(t, http.MethodPost, changefeeds, spec(object{file: "db", secret: ref})), "spec: Invalid value: set "+file+" or "+secret+", not both")
		invalid(t, admin.do(t, http.MethodPost, changefeeds, spec(object{file: "", secret: ref})))
		a := admin.must(t, http.MethodPost, changefeeds, spec(object{secret: ref}))
		if got := a.object(t)["spec"].(map[string]any)[secret].(map[string]any)["key"]; got != "password" {
			t.Errorf("the default key is %v", got)
		}
		for _, bad := range []object{{"name": ""}, {"name": "Big"}, {"name": "../x"}, {"name": "db", "key": "a/b"}, {"key": "a"}} {
			if a := admin.do(t, http.MethodPost, changefeeds, spec(object{secret: bad})); a.code != http.StatusUnprocessableEntity {
				t.Errorf("%v: %s", bad, a)
			}
		}
	}
}
