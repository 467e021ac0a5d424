package render_test

import (
	_ "embed"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/health/render"
)

// seed is the seed's template, unchanged.
//
//go:embed testdata/seed.yaml
var seed string

var request = schema.GroupVersionKind{Group: "nvsentinel.nvidia.com", Version: "v1alpha1", Kind: "DrainRequest"}

func parse(t testing.TB, text string) *render.Template {
	t.Helper()
	tmpl, err := render.Parse("drain-template.yaml", text, request, "nvsentinel")
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

func event(s string) *v1alpha1.HealthEvent {
	return &v1alpha1.HealthEvent{
		ObjectMeta: metav1.ObjectMeta{Name: "e1"},
		Spec: v1alpha1.HealthEventSpec{
			Agent: s, ComponentClass: s, CheckName: s, Message: s, RecommendedAction: v1alpha1.RecommendedAction(s), NodeName: s, ID: s, IsFatal: true,
			ErrorCode: []string{s, "b" + s}, EntitiesImpacted: []v1alpha1.Entity{{EntityType: s, EntityValue: s + "1"}, {EntityType: "GPU", EntityValue: s}},
			Metadata: map[string]string{s: s, "k" + s: "v" + s},
		},
	}
}

func pods(s string) *v1alpha1.PodsSnapshot {
	return &v1alpha1.PodsSnapshot{Namespaces: []v1alpha1.PodsOfNamespace{{Namespace: s, Names: []string{s, "p" + s}}}}
}

// wanted is the resource of the seed's template for event and pods.
func wanted(s string) map[string]any {
	return map[string]any{
		"apiVersion": "nvsentinel.nvidia.com/v1alpha1", "kind": "DrainRequest",
		"spec": map[string]any{
			"nodeName": s, "checkName": s, "recommendedAction": s, "errorCode": s + ",b" + s,
			"entitiesImpacted": []any{map[string]any{"type": s, "value": s + "1"}, map[string]any{"type": "GPU", "value": s}},
			"metadata":         map[string]any{s: s, "k" + s: "v" + s},
			"reason":           s,
			"podsToDrain":      map[string]any{s: []any{s, "p" + s}},
		},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "DrainComplete", "status": "False", "reason": "Pending"}}},
	}
}

var nasty = []string{
	"plain", "", " ", "true", "null", "~", "1", "1e3", "0x10", "2026-01-01", "quote\"", "'", "a\nb", "\n", "a: b", "- a", "#", "a # b", "{{", "{{ .HealthEvent }}", "}}",
	"[a]", "{a: b}", "&a", "*a", "!!str", "|", ">", "%", "@", "`", "\t", "\r\n", "\u2028", "\u0085", "\x00", "\x1b", "ü€😀", "EbbValue.n0.EbbEnd",
	"EbbValue.h61.EbbEnd", "---", "...", "? a", "<<", strings.Repeat("x", 2000), strings.Repeat("a b ", 500), "\\", "\\n", "key:", "\ufeff",
}

func TestTheSeedsTemplateHoldsExactlyTheStringsOfTheEvent(t *testing.T) {
	tmpl := parse(t, seed)
	for _, s := range nasty {
		u, err := tmpl.Render(render.NewData(event(s), pods(s)))
		if err != nil {
			t.Errorf("%q: %v", s, err)
			continue
		}
		if s == "" {
			continue // the object's name is the id then
		}
		if diff := cmp.Diff(wanted(s), u.Object); diff != "" {
			t.Errorf("%q (-want +got):\n%s", s, diff)
		}
	}
}

func FuzzTheSeedsTemplateHoldsExactlyTheStringsOfTheEvent(f *testing.F) {
	for _, s := range nasty {
		f.Add(s, "x"+s)
	}
	tmpl := parse(f, seed)
	f.Fuzz(func(t *testing.T, a, b string) {
		if !utf8.ValidString(a) || !utf8.ValidString(b) || a == b {
			t.Skip("not what an API accepts, or the same key twice")
		}
		e := &v1alpha1.HealthEvent{Spec: v1alpha1.HealthEventSpec{
			Agent: b, ComponentClass: a, CheckName: a, Message: b, RecommendedAction: v1alpha1.RecommendedAction(a), NodeName: b, ID: a,
			ErrorCode: []string{a, b}, EntitiesImpacted: []v1alpha1.Entity{{EntityType: a, EntityValue: b}}, Metadata: map[string]string{a: b, b: a},
		}}
		u, err := tmpl.Render(render.NewData(e, &v1alpha1.PodsSnapshot{Namespaces: []v1alpha1.PodsOfNamespace{{Namespace: b, Names: []string{a, b}}}}))
		if err != nil {
			t.Fatal(err)
		}
		want := wanted("x")
		spec, _ := want["spec"].(map[string]any)
		maps.Copy(spec, map[string]any{
			"nodeName": b, "checkName": a, "recommendedAction": a, "errorCode": a + "," + b, "reason": b,
			"entitiesImpacted": []any{map[string]any{"type": a, "value": b}}, "metadata": map[string]any{a: b, b: a},
			"podsToDrain": map[string]any{b: []any{a, b}},
		})
		if diff := cmp.Diff(want, u.Object); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

const head = "apiVersion: nvsentinel.nvidia.com/v1alpha1\nkind: DrainRequest\n"

func field(t *testing.T, tmpl *render.Template, e *v1alpha1.HealthEvent) any {
	t.Helper()
	u, err := tmpl.Render(render.NewData(e, nil))
	if err != nil {
		t.Fatal(err)
	}
	value, _, err := unstructured.NestedFieldNoCopy(u.Object, "spec", "a")
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestWhatTemplatesCanDo(t *testing.T) {
	e := event("it's: \"x\"\n")
	e.Spec.Metadata = map[string]string{"gpu": "a: b", "x:y": "z\n"}
	for _, tc := range []struct {
		what, action string
		want         any
	}{
		{"comparisons see the text", `{{ if eq .HealthEvent.CheckName "it's: \"x\"\n" }}same{{ else }}other{{ end }}`, "same"},
		{"comparisons see what printf makes of the text", `{{ if eq (printf "%.2s-%s" .HealthEvent.CheckName "x") "it-x" }}same{{ else }}other{{ end }}`, "same"},
		{"comparisons see what print makes of the text", `{{ if .HealthEvent.ErrorCode | print | ne "it's: \"x\"\n,bit's: \"x\"\n" }}other{{ else }}same{{ end }}`, "same"},
		{"a comparison with several texts", `{{ if eq .HealthEvent.CheckName "a" (print "it's" ": \"x\"\n") }}same{{ else }}other{{ end }}`, "same"},
		{"the order of texts", `{{ if and (lt "a" .HealthEvent.CheckName) (ge (print .HealthEvent.CheckName) .HealthEvent.CheckName) (gt "z" (print .HealthEvent.CheckName)) (le .HealthEvent.CheckName .HealthEvent.CheckName) }}same{{ end }}`, "same"},
		{"comparisons of numbers", `{{ if and (eq .HealthEvent.Version 0) (lt .HealthEvent.Version 1) (ne (len .HealthEvent.ErrorCode) 1) }}same{{ end }}`, "same"},
		{"comparisons of booleans", `{{ if eq .HealthEvent.IsFatal true }}same{{ end }}`, "same"},
		{"a list is compared by its entries", `{{ len .HealthEvent.ErrorCode }}`, int64(2)},
		{"numbers stay numbers", `{{ .HealthEvent.Version }}`, int64(0)},
		{"booleans stay booleans", `{{ .HealthEvent.IsFatal }}`, true},
		{"a value in quotes", `"{{ .HealthEvent.Message }}"`, "it's: \"x\"\n"},
		{"a value in single quotes", `'{{ .HealthEvent.Message }}'`, "it's: \"x\"\n"},
		{"a value inside a text", `a {{ .HealthEvent.Message }} b`, "a it's: \"x\"\n b"},
		{"printf %q gives the text", `{{ printf "%q" .HealthEvent.Message }}`, "it's: \"x\"\n"},
		{"printf with text around", `{{ printf "x-%s" .HealthEvent.Message }}`, "x-it's: \"x\"\n"},
		{"printf with a precision", `{{ printf "%.3s" .HealthEvent.Message }}`, "it'"},
		{"printf with a width", `"{{ printf "%14s" .HealthEvent.Message }}"`, "    it's: \"x\"\n"},
		{"printf of a list", `{{ printf "%.4s" .HealthEvent.ErrorCode }}`, "it's"},
		{"printf in hexadecimal", `"{{ printf "%.2x" .HealthEvent.Message }}"`, "6974"},
		{"printf of a part of a key", `{{ range $k, $v := .HealthEvent.Metadata }}{{ printf "%.1s" $k }}{{ end }}`, "gx"},
		{"print", `{{ print .HealthEvent.ErrorCode "!" }}`, "it's: \"x\"\n,bit's: \"x\"\n!"},
		{"a key of the metadata", `{{ .HealthEvent.Metadata.gpu }}`, "a: b"},
		{"a key by index", `{{ index .HealthEvent.Metadata "x:y" }}`, "z\n"},
		{"a key that is not there", `"{{ .HealthEvent.Metadata.none }}"`, ""},
		{"an entry by index", `{{ index .HealthEvent.ErrorCode 1 }}`, "bit's: \"x\"\n"},
		{"a part of a text", `{{ slice .HealthEvent.Message 2 5 }}`, "'s:"},
		{"a variable", `{{ $m := .HealthEvent.Message }}{{ $m }}`, "it's: \"x\"\n"},
		{"keys in a text", `{{ range $k, $v := .HealthEvent.Metadata }}{{ printf "%s;" $k }}{{ end }}`, "gpu;x:y;"},
		{"a part of a key", `{{ range $k, $v := .HealthEvent.Metadata }}{{ slice $k 1 }}{{ end }}`, "pu:y"},
		{"a template in the template", `{{ template "t" .HealthEvent.Message }}`, "it's: \"x\"\n"},
		{"the time", `"{{ .HealthEvent.GeneratedTimestamp }}"`, ""},
	} {
		t.Run(tc.what, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, field(t, parseLoosely(t, tc.action), e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A key that looks like a placeholder is none.
func TestAKeyIsComparedAsTheEventHasIt(t *testing.T) {
	e := event("x")
	e.Spec.Metadata = map[string]string{"EbbValue.n99.EbbEnd": "EbbValue.n99.EbbEnd"}
	if got := field(t, parseLoosely(t, "{{ range $k, $v := .HealthEvent.Metadata }}{{ if eq $k $v }}same{{ end }}{{ end }}"), e); got != "same" {
		t.Errorf("rendered as %v", got)
	}
}

// A map or an object as a whole is one string, whatever the keys and the values are: none of them becomes YAML.
func TestWhatIsPrintedAsAWholeIsOneString(t *testing.T) {
	for _, action := range []string{
		"{{ .HealthEvent.Metadata }}", "{{ print .HealthEvent.Metadata }}", `{{ printf "%v" .HealthEvent.Metadata }}`, "|1\n  {{ .HealthEvent.Metadata }}", `"{{ .HealthEvent.Metadata }}"`,
		"{{ . }}", "{{ .HealthEvent.EntitiesImpacted }}", "{{ range .HealthEvent.EntitiesImpacted }}{{ . }}{{ end }}", "{{ .PodsToDrain }}", "{{ .HealthEvent.DrainOverrides }}",
	} {
		tmpl := parse(t, head+"spec:\n a: "+action+"\n")
		for _, s := range nasty {
			e := event("x")
			e.Spec.Metadata = map[string]string{s + "\nstatus: {a: b}": s, "}": "{"}
			e.Spec.EntitiesImpacted = []v1alpha1.Entity{{EntityType: s, EntityValue: "]"}}
			u, err := tmpl.Render(render.NewData(e, pods("default")))
			if err != nil {
				t.Errorf("%s with %q: %v", action, s, err)
				continue
			}
			value, isText, err := unstructured.NestedString(u.Object, "spec", "a")
			if err != nil || !isText || len(u.Object) != 3 {
				t.Errorf("%s with %q: %v", action, s, u.Object)
			}
			if strings.HasSuffix(action, "Metadata }}") && !strings.HasPrefix(s, "EbbValue") && (!strings.Contains(value, s+"\nstatus: {a: b}:"+s) || !strings.Contains(value, "}:{")) {
				t.Errorf("%s with %q: %q", action, s, value)
			}
		}
	}
}

// parseLoosely parses a template that need not work for the sample events.
func parseLoosely(t *testing.T, action string) *render.Template {
	t.Helper()
	return parse(t, head+"spec:\n  a: {{ if eq .HealthEvent.NodeName \"node\" }}sample{{ else }}"+action+"{{ end }}\n{{ define \"t\" }}{{ . }}{{ end }}")
}

func TestKeysWithoutAValueAreLeftOut(t *testing.T) {
	u, err := parse(t, seed).Render(render.NewData(&v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Spec: v1alpha1.HealthEventSpec{NodeName: "n1", CheckName: "c"}}, nil))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"nodeName": "n1", "checkName": "c", "recommendedAction": "", "errorCode": "", "reason": ""}
	if diff := cmp.Diff(want, u.Object["spec"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTemplatesThatCannotWorkAreRefusedAtTheStart(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"{{ .HealthEvent.Nodename }}", "can't evaluate field Nodename"},
		{"{{ if }}", "missing value for if"},
		{"", "the result is empty"},
		{"- a", "not YAML of one object"},
		{head + "a: b: c", "not YAML of one object"},
		{head + "a: 1\na: 2", "not YAML of one object"},
		{"apiVersion: v1\nkind: DrainRequest", "apiVersion is v1, and the configuration says nvsentinel.nvidia.com/v1alpha1"},
		{"apiVersion: nvsentinel.nvidia.com/v1alpha1\nkind: Secret", "kind is Secret, and the configuration says DrainRequest"},
		{"apiVersion: nvsentinel.nvidia.com/v1alpha1\nkind: {{ .HealthEvent.Message }}", "and the configuration says DrainRequest"},
		{head + "metadata:\n  name: x", "remove metadata.name"},
		{head + "metadata:\n  namespace: other", "metadata.namespace is other, and the configuration says nvsentinel"},
		{head + "metadata:\n  annotations: {gpus: 8, team: a}", "metadata.annotations.gpus is 8, and must be text: put it in quotes"},
		{head + "metadata:\n  labels:\n    fatal: {{ .HealthEvent.IsFatal }}", "metadata.labels.fatal is true, and must be text"},
		{head + "metadata:\n  labels: [a]", "metadata.labels is [a], and must be a map"},
		{head + "a: {{ html .HealthEvent.Message }}", "html cannot be used"},
		{head + "a: {{ if eq .HealthEvent.Version \"1\" }}b{{ end }}", "incompatible types for comparison"},
		{head + "a: {{ if ne .HealthEvent.Message }}b{{ end }}", "wrong number of arguments for ne"},
		{head + "a: {{ if eq .HealthEvent.Message }}b{{ end }}", "wrong number of arguments for eq"},
		{head + "a: EbbValue.n99.EbbEnd", "which Ebb uses for its own purposes"},
		{head + "a: {{ call .HealthEvent.Message }}", "non-function"},
	} {
		_, err := render.Parse("t.yaml", tc.text, request, "nvsentinel")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %s", tc.text, err, tc.want)
		}
	}
	if _, err := render.Parse("t.yaml", head+"metadata:\n  namespace: nvsentinel\n  labels: {a: b}", request, "nvsentinel"); err != nil {
		t.Error(err)
	}
}
