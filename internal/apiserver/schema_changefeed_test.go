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

// pair is a changefeed from one MariaDB server to another.
func pair(more object) object {
	all := object{"source": "mysql://u@db:3306", "sink": "mysql://u@db:3306"}
	for k, v := range more {
		all[k] = v
	}
	return changefeedObject(all)
}

func TestRoutesThatCannotBeFollowedAreRefusedByTheSchema(t *testing.T) {
	admin := api(t).admin(t)
	const (
		one     = "spec.routing[0]: Invalid value: set schema or table: a route gives tables another name"
		schemas = "spec.routing[0]: Invalid value: tables of several schemas match: use {schema} in schema, or match one schema"
		tables  = "spec.routing[0]: Invalid value: several tables match: use {table} in table, or match one table"
	)
	for _, c := range []struct {
		route object
		want  []string
	}{
		{object{"match": "shop.orders", "schema": "crm", "table": "sales"}, nil},
		{object{"match": "shop.*", "schema": "crm"}, nil},
		{object{"match": "sh?p.*", "schema": "{schema}_copy", "table": "{table}_v1"}, nil},
		{object{"match": "shop.a.b", "table": "c"}, nil},
		{object{"match": "shop.*"}, []string{one}},
		{object{"match": "shop.*", "schema": "", "table": ""}, []string{one}},
		{object{"match": "sh*.orders", "schema": "crm"}, []string{schemas}},
		{object{"match": "?.orders", "schema": "crm", "table": "x"}, []string{schemas}},
		{object{"match": "shop.*", "table": "sales"}, []string{tables}},
		{object{"match": "*.a?", "schema": "crm", "table": "x"}, []string{schemas, tables}},
	} {
		invalid(t, admin.do(t, http.MethodPost, changefeeds, pair(object{"routing": []any{c.route}})), c.want...)
	}
	for _, match := range []string{"", "shop", "!shop.*", ".orders", "shop.", "shop.[a]", "shop.a\\b", "sh[o]p.x", strings.Repeat("x", 250) + ".orders"} {
		if a := admin.do(t, http.MethodPost, changefeeds, pair(object{"routing": []any{object{"match": match, "schema": "crm"}}})); a.code != http.StatusUnprocessableEntity || !strings.Contains(a.message(), "spec.routing[0].match") {
			t.Errorf("%q: %s", match, a)
		}
	}
	for _, name := range []string{"schema", "table"} {
		if a := admin.do(t, http.MethodPost, changefeeds, pair(object{"routing": []any{object{"match": "a.b", name: strings.Repeat("x", 129)}}})); a.code != http.StatusUnprocessableEntity {
			t.Errorf("%s: %s", name, a)
		}
	}
	many := make([]any, 101)
	for i := range many {
		many[i] = object{"match": "a.b", "schema": "c"}
	}
	if a := admin.do(t, http.MethodPost, changefeeds, pair(object{"routing": many})); a.code != http.StatusUnprocessableEntity {
		t.Errorf("101 routes: %s", a)
	}
	onlyServers(t, admin, "routing", []any{object{"match": "a.b", "schema": "c"}})
	fixedOnceBegun(t, admin, "routing", []any{object{"match": "a.b", "schema": "c"}}, []any{object{"match": "a.b", "schema": "d"}}, "routing can be changed only before the changefeed begins, because what it has written has the names of then; create another changefeed")
}

func TestWhatCannotBeLeftOutIsRefusedByTheSchema(t *testing.T) {
	admin := api(t).admin(t)
	const nothing = "spec.leaveOut[0]: Invalid value: set columns or rows: what of the tables is left out"
	for _, c := range []struct {
		entry object
		want  []string
	}{
		{object{"match": "shop.users", "columns": []any{"password", "PIN_2$"}}, nil},
		{object{"match": "shop.*", "rows": "region = 7 AND NOT (name IN ('a', 'b'))"}, nil},
		{object{"match": "shop.*", "columns": []any{"a"}, "rows": "a = 1"}, nil},
		{object{"match": "shop.*"}, []string{nothing}},
		{object{"match": "shop.*", "columns": []any{}, "rows": ""}, []string{nothing}},
	} {
		invalid(t, admin.do(t, http.MethodPost, changefeeds, pair(object{"leaveOut": []any{c.entry}})), c.want...)
	}
	for what, entry := range map[string]object{
		"match": {"match": "!shop.*", "rows": "a = 1"}, "columns[0]": {"match": "a.b", "columns": []any{"pass word"}}, "rows": {"match": "a.b", "rows": "a = '\u00e4'"},
	} {
		if a := admin.do(t, http.MethodPost, changefeeds, pair(object{"leaveOut": []any{entry}})); a.code != http.StatusUnprocessableEntity || !strings.Contains(a.message(), "spec.leaveOut[0]."+what) {
			t.Errorf("%s: %s", what, a)
		}
	}
	for _, entry := range []object{{"match": "a.b", "columns": []any{strings.Repeat("x", 65)}}, {"match": "a.b", "columns": []any{""}}, {"match": "a.b", "rows": "a = " + strings.Repeat("1", 1024)}, {"columns": []any{"a"}}} {
		if a := admin.do(t, http.MethodPost, changefeeds, pair(object{"leaveOut": []any{entry}})); a.code != http.StatusUnprocessableEntity {
			t.Errorf("%v: %s", entry, a)
		}
	}
	onlyServers(t, admin, "leaveOut", []any{object{"match": "a.b", "rows": "c = 1"}})
	fixedOnceBegun(t, admin, "leaveOut", []any{object{"match": "a.b", "rows": "c = 1"}}, []any{object{"match": "a.b", "rows": "c = 2"}}, "leaveOut can be changed only before the changefeed begins, because what it has written was chosen by it; create another changefeed")
}

// onlyServers wants a field to be refused unless source and sink are servers.
func onlyServers(t *testing.T, admin caller, field string, value any) {
	t.Helper()
	want := "spec: Invalid value: " + field + " needs a source and a sink of mysql://"
	for _, spec := range []object{{"sink": "blackhole://"}, {"sink": "file:///d"}, {"source": "datagen://?tables=1"}} {
		spec[field] = value
		invalid(t, admin.do(t, http.MethodPost, changefeeds, pair(spec)), want)
		spec[field] = []any{}
		invalid(t, admin.do(t, http.MethodPost, changefeeds, pair(spec)))
	}
}

// fixedOnceBegun wants a field to change only as long as the changefeed has no position.
func fixedOnceBegun(t *testing.T, admin caller, field string, first, second any, why string) {
	t.Helper()
	for _, before := range []any{first, nil} {
		o := pair(object{field: before})
		if before == nil {
			o = pair(nil)
		}
		name := admin.must(t, http.MethodPost, changefeeds, o).object(t)["metadata"].(map[string]any)["name"].(string)
		path := changefeeds + "/" + name
		patch := func(value any) answer {
			return admin.do(t, http.MethodPatch, path, object{"spec": object{field: value}})
		}
		invalid(t, patch(second))
		invalid(t, patch(before))
		admin.must(t, http.MethodPatch, path+"/status", object{"status": object{"startPosition": 5}})
		invalid(t, patch(second), why)
		invalid(t, patch(before))
		if before != nil {
			invalid(t, patch(nil), why)
		}
	}
}
