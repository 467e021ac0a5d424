package httpapi

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
)

type document struct {
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }
}

type operation struct {
	OperationID string
	Parameters  []struct{ Name, In string }
	RequestBody any
	Responses   map[string]struct {
		Content map[string]struct{ Schema schema }
	}
}

type schema struct {
	Ref        string `json:"$ref"`
	Type       string
	Properties map[string]schema
	Required   []string
	Items      *schema
}

func readDocument(t *testing.T) document {
	t.Helper()
	var d document
	if err := json.Unmarshal(openapi, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// placeholders are the parameters in the path of a route.
func placeholders(path string) []string {
	var names []string
	for _, part := range strings.Split(path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			names = append(names, strings.TrimSuffix(name, "}"))
		}
	}
	return names
}

func (o operation) inPath() []string {
	var names []string
	for _, p := range o.Parameters {
		if p.In == "path" {
			names = append(names, p.Name)
		}
	}
	return names
}

func TestTheOpenAPIDocumentDescribesJustWhatIsServed(t *testing.T) {
	d := readDocument(t)
	var served, described []string
	for _, r := range (&Server{}).routes() {
		served = append(served, r.method+" "+r.path)
		op := d.Paths[r.path][strings.ToLower(r.method)]
		if _, ok := op.Responses["401"]; !ok {
			t.Errorf("%s %s: 401 is not described", r.method, r.path)
		}
		if _, ok := op.Responses["503"]; ok != r.coordinator {
			t.Errorf("%s %s: described as answered by the coordinator: %v, want %v", r.method, r.path, ok, r.coordinator)
		}
		if want, got := placeholders(r.path), op.inPath(); !slices.Equal(want, got) {
			t.Errorf("%s %s: parameters in the path %v, described %v", r.method, r.path, want, got)
		}
	}
	for path, ops := range d.Paths {
		for method := range ops {
			described = append(described, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(described)
	if !slices.Equal(served, described) {
		t.Errorf("served:\n%s\ndescribed:\n%s", strings.Join(served, "\n"), strings.Join(described, "\n"))
	}
}

func TestTheSchemasAreThoseOfTheAnswers(t *testing.T) {
	d := readDocument(t)
	for name, answer := range map[string]any{
		"Error": Error{}, "Capture": Capture{}, "DrainAccepted": DrainAccepted{}, "DrainStatus": DrainStatus{},
	} {
		var fields, required []string
		typ := reflect.TypeOf(answer)
		for i := range typ.NumField() {
			field, options, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			fields = append(fields, field)
			if options != "omitempty" {
				required = append(required, field)
			}
		}
		s := d.Components.Schemas[name]
		var described []string
		for field := range s.Properties {
			described = append(described, field)
		}
		for _, list := range [][]string{fields, required, described, s.Required} {
			slices.Sort(list)
		}
		if !slices.Equal(fields, described) || !slices.Equal(required, s.Required) {
			t.Errorf("%s: fields %v, required %v; described %v, required %v", name, fields, required, described, s.Required)
		}
	}
}

func TestEverySchemaThatIsNamedExists(t *testing.T) {
	d := readDocument(t)
	for path, ops := range d.Paths {
		for method, op := range ops {
			for code, r := range op.Responses {
				for _, content := range r.Content {
					s := content.Schema
					if s.Items != nil {
						s = *s.Items
					}
					if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok && d.Components.Schemas[name].Type == "" {
						t.Errorf("%s %s %s: no schema %s", method, path, code, name)
					}
				}
			}
		}
	}
}
