// Package render makes custom resources from a template. What an event contains cannot change the structure of the resource, whatever
// its strings are: where a template prints a value, a placeholder is printed, and the placeholders are replaced by the values after the
// YAML was parsed. Comparisons inside the template see the values themselves.
package render

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// printer is the function that is added to every action that prints.
const printer = "_print"

// Template is a template of a custom resource.
type Template struct {
	name      string
	parsed    *template.Template
	gvk       schema.GroupVersionKind
	namespace string
}

// Parse reads a template of resources of a kind in a namespace. It renders a sample, so that a template that cannot work is refused.
func Parse(name, text string, gvk schema.GroupVersionKind, namespace string) (*Template, error) {
	parsed, err := template.New(name).Option("missingkey=zero").Funcs((&values{}).functions()).Parse(text)
	if err != nil {
		return nil, fmt.Errorf("drain template: %w", err)
	}
	for _, t := range parsed.Templates() {
		if t.Tree != nil {
			addPrinters(t.Root)
		}
	}
	made := &Template{name: name, parsed: parsed, gvk: gvk, namespace: namespace}
	for _, sample := range samples() {
		if _, err := made.Render(sample); err != nil {
			return nil, fmt.Errorf("rendering a sample event: %w", err)
		}
	}
	return made, nil
}

// Render makes a resource without a name. Keys without a value, such as an empty list leaves behind, are left out.
func (t *Template) Render(data Data) (*unstructured.Unstructured, error) {
	printed := newValues(data)
	clone, err := t.parsed.Clone()
	if err != nil {
		return nil, fmt.Errorf("drain template %s: %w", t.name, err)
	}
	var out bytes.Buffer
	if err := clone.Funcs(printed.functions()).Execute(&out, data); err != nil {
		return nil, fmt.Errorf("drain template: %w", err)
	}
	content, err := read(out.Bytes())
	if err != nil {
		return nil, fmt.Errorf("drain template %s: the result is not YAML of one object: %w", t.name, err)
	}
	replaced, err := printed.replace(content)
	if err != nil {
		return nil, fmt.Errorf("drain template %s: %w", t.name, err)
	}
	object, _ := replaced.(map[string]any)
	return t.check(&unstructured.Unstructured{Object: object})
}

// read parses YAML as the clients of Kubernetes do: whole numbers are integers.
func read(text []byte) (content map[string]any, err error) {
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	return content, json.Unmarshal(converted, &content)
}

// check refuses what Ebb sets itself, and what is not the configured kind.
func (t *Template) check(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if len(u.Object) == 0 {
		return nil, fmt.Errorf("drain template %s: the result is empty", t.name)
	}
	wantVersion, wantKind := t.gvk.ToAPIVersionAndKind()
	for _, field := range []struct{ name, want string }{{"apiVersion", wantVersion}, {"kind", wantKind}} {
		if got, ok := u.Object[field.name].(string); !ok || got != field.want {
			return nil, fmt.Errorf("drain template %s: %s is %v, and the configuration says %s", t.name, field.name, u.Object[field.name], field.want)
		}
	}
	metadata, found, err := unstructured.NestedMap(u.Object, "metadata")
	if err != nil {
		return nil, fmt.Errorf("drain template %s: %w", t.name, err)
	}
	if !found {
		return u, nil
	}
	if err := checkTexts(metadata); err != nil {
		return nil, fmt.Errorf("drain template %s: %w", t.name, err)
	}
	if metadata["name"] != nil || metadata["generateName"] != nil {
		return nil, fmt.Errorf("drain template %s: remove metadata.name: Ebb names the resource", t.name)
	}
	if ns := metadata["namespace"]; ns != nil && ns != t.namespace {
		return nil, fmt.Errorf("drain template %s: metadata.namespace is %v, and the configuration says %s", t.name, ns, t.namespace)
	}
	return u, nil
}

// checkTexts refuses labels and annotations that are not text: the API would refuse them, or they would get lost when Ebb adds its annotations.
func checkTexts(metadata map[string]any) error {
	for _, field := range []string{"labels", "annotations"} {
		if metadata[field] == nil {
			continue
		}
		content, ok := metadata[field].(map[string]any)
		if !ok {
			return fmt.Errorf("metadata.%s is %v, and must be a map", field, metadata[field])
		}
		for _, key := range slices.Sorted(maps.Keys(content)) {
			if _, ok := content[key].(string); !ok {
				return fmt.Errorf("metadata.%s.%s is %v, and must be text: put it in quotes", field, key, content[key])
			}
		}
	}
	return nil
}

// addPrinters lets the result of every action that prints pass the printer.
func addPrinters(node parse.Node) {
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		for _, child := range n.Nodes {
			addPrinters(child)
		}
	case *parse.ActionNode:
		if len(n.Pipe.Decl) == 0 {
			n.Pipe.Cmds = append(n.Pipe.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Pos: n.Pos, Args: []parse.Node{parse.NewIdentifier(printer).SetPos(n.Pos)}})
		}
	case *parse.IfNode:
		addPrinters(n.List)
		addPrinters(n.ElseList)
	case *parse.RangeNode:
		addPrinters(n.List)
		addPrinters(n.ElseList)
	case *parse.WithNode:
		addPrinters(n.List)
		addPrinters(n.ElseList)
	}
}

// Placeholders have a number in the list of printed values, or the value itself in hexadecimal. They are plain scalars in YAML and mean
// the same in quotes and blocks.
var (
	placeholder = regexp.MustCompile(`EbbValue\.(n[0-9]+|h[0-9a-f]*)\.EbbEnd`)
	inHex       = regexp.MustCompile(`EbbValue\.h([0-9a-f]*)\.EbbEnd`)
)

// values are those that one rendering printed.
type values struct {
	// keys of maps are plain strings, so that templates can look them up; they are recognized when they are printed.
	keys map[string]bool
	list []string
}

func newValues(data Data) *values {
	v := &values{keys: map[string]bool{}}
	for key := range data.HealthEvent.Metadata {
		v.keys[key] = true
	}
	for key := range data.PodsToDrain {
		v.keys[key] = true
	}
	return v
}

// put remembers a value and returns its placeholder.
func (v *values) put(value string) string {
	v.list = append(v.list, value)
	return "EbbValue.n" + strconv.Itoa(len(v.list)-1) + ".EbbEnd"
}

// marked returns what is printed instead of a value of the event; anything else is returned as it is.
func (v *values) marked(value any) any {
	if text, ok := v.textOf(value); ok {
		return v.put(text)
	}
	return value
}

// textOf is a value of the event as one string. Anything else has none: numbers, booleans, and what the template itself contains.
func (v *values) textOf(value any) (text string, ok bool) {
	switch x := value.(type) {
	case Text:
		return string(x), true
	case Texts:
		return x.joined(), true
	case string:
		return x, v.keys[x]
	}
	switch reflect.ValueOf(value).Kind() {
	case reflect.Map, reflect.Struct, reflect.Slice: // with strings of the event in it, also as keys, which fmt prints as they are
		return inHex.ReplaceAllStringFunc(fmt.Sprint(value), func(found string) string {
			decoded, err := hex.DecodeString(inHex.FindStringSubmatch(found)[1])
			if err != nil {
				return found // no placeholder, but a key that looks like one
			}
			return string(decoded)
		}), true
	}
	return "", false
}

func (v *values) all(list []any) []any {
	marked := make([]any, len(list))
	for i := range list {
		marked[i] = v.marked(list[i])
	}
	return marked
}

// printf is printf of text/template, for which a string of the event is the string itself: a width or a precision counts its characters.
func (v *values) printf(format string, list ...any) string {
	formatted := make([]any, len(list))
	for i, value := range list {
		formatted[i] = value
		if text, ok := v.textOf(value); ok {
			formatted[i] = formattedText{v, text}
		}
	}
	return fmt.Sprintf(format, formatted...)
}

// formattedText is a string of the event that is printed as a placeholder of what a format makes of it.
type formattedText struct {
	values *values
	text   string
}

// Format implements fmt.Formatter.
func (t formattedText) Format(f fmt.State, verb rune) {
	if verb == 'q' { // the quotes are for YAML, and what is between them is the string
		fmt.Fprintf(f, "%q", t.values.put(t.text))
		return
	}
	fmt.Fprint(f, t.values.put(fmt.Sprintf(fmt.FormatString(f, verb), t.text)))
}

// functions are the functions of templates. Those of text/template that would print a value or take it apart are replaced.
func (v *values) functions() template.FuncMap {
	refused := func(name string) func(...any) (string, error) {
		return func(...any) (string, error) {
			return "", errors.New(name + " cannot be used in drain templates: values need no escaping")
		}
	}
	functions := template.FuncMap{
		printer:    v.marked,
		"print":    func(list ...any) string { return fmt.Sprint(v.all(list)...) },
		"printf":   v.printf,
		"println":  func(list ...any) string { return fmt.Sprintln(v.all(list)...) },
		"index":    index,
		"slice":    slice,
		"html":     refused("html"),
		"js":       refused("js"),
		"urlquery": refused("urlquery"),
	}
	for _, name := range []string{"eq", "ne", "lt", "le", "gt", "ge"} {
		functions[name] = v.comparison(name)
	}
	return functions
}

// builtin has the comparisons of text/template, of two values each.
var builtin = template.Must(template.New("").Parse(`{{ define "eq" }}{{ eq .A .B }}{{ end }}{{ define "ne" }}{{ ne .A .B }}{{ end }}` +
	`{{ define "lt" }}{{ lt .A .B }}{{ end }}{{ define "le" }}{{ le .A .B }}{{ end }}{{ define "gt" }}{{ gt .A .B }}{{ end }}{{ define "ge" }}{{ ge .A .B }}{{ end }}`))

// comparison is the comparison of text/template of that name, for which a string that print or printf made has the values of the event in it and not
// their placeholders.
func (v *values) comparison(name string) func(first any, others ...any) (bool, error) {
	return func(first any, others ...any) (bool, error) {
		if len(others) == 0 || len(others) > 1 && name != "eq" {
			return false, fmt.Errorf("wrong number of arguments for %s: %d", name, 1+len(others))
		}
		a, err := v.resolved(first)
		if err != nil {
			return false, err
		}
		for _, other := range others { // eq is true if one of them is equal
			b, err := v.resolved(other)
			if err != nil {
				return false, err
			}
			var answer strings.Builder
			if err := builtin.ExecuteTemplate(&answer, name, struct{ A, B any }{a, b}); err != nil {
				return false, err
			}
			if answer.String() == "true" {
				return true, nil
			}
		}
		return false, nil
	}
}

// resolved is a value in which the placeholders of a string are replaced.
func (v *values) resolved(value any) (any, error) {
	if printed, ok := value.(string); ok && !v.keys[printed] { // keys are as the event has them
		return v.text(printed)
	}
	return value, nil
}

// replace puts the values in the places of their placeholders.
func (v *values) replace(content any) (any, error) {
	switch x := content.(type) {
	case string:
		return v.text(x)
	case []any:
		for i := range x {
			replaced, err := v.replace(x[i])
			if err != nil {
				return nil, err
			}
			x[i] = replaced
		}
	case map[string]any:
		replaced := make(map[string]any, len(x))
		for key, value := range x {
			if value == nil {
				continue
			}
			name, err := v.text(key)
			if err != nil {
				return nil, err
			}
			if _, twice := replaced[name]; twice {
				return nil, fmt.Errorf("key %q is there twice", name)
			}
			if replaced[name], err = v.replace(value); err != nil {
				return nil, err
			}
		}
		return replaced, nil
	}
	return content, nil
}

func (v *values) text(from string) (text string, err error) {
	text = placeholder.ReplaceAllStringFunc(from, func(found string) string {
		value, wrong := v.value(placeholder.FindStringSubmatch(found)[1])
		err = errors.Join(err, wrong)
		return value
	})
	return text, err
}

func (v *values) value(code string) (string, error) {
	if code[0] == 'h' {
		decoded, err := hex.DecodeString(code[1:])
		return string(decoded), err
	}
	n, err := strconv.Atoi(code[1:])
	if err != nil || n >= len(v.list) {
		return "", fmt.Errorf("the template contains %q, which Ebb uses for its own purposes", "EbbValue."+code)
	}
	return v.list[n], nil
}

// Text is a string of an event. Printed as a part of something larger, it is a placeholder too.
type Text string

// String implements fmt.Stringer.
func (t Text) String() string { return "EbbValue.h" + hex.EncodeToString([]byte(t)) + ".EbbEnd" }

// Texts are several strings. Printed they are one, joined by commas.
type Texts []Text

// String implements fmt.Stringer.
func (t Texts) String() string { return Text(t.joined()).String() }

func (t Texts) joined() string {
	parts := make([]string, len(t))
	for i := range t {
		parts[i] = string(t[i])
	}
	return strings.Join(parts, ",")
}
