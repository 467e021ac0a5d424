// Package drainconfig reads the file of --drain-config: what happens to an unhealthy node, and how pods and other schedulers' work leave
// it. Whatever is wrong in the file is an error at the start that names the file, the line and the key.
package drainconfig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Mode is how the pods of a namespace leave a node.
type Mode string

// The modes.
const (
	// Immediate evicts pods at once.
	Immediate Mode = "Immediate"
	// DeleteAfterTimeout evicts pods as budgets allow, and deletes those that are left after deleteAfterTimeoutMinutes.
	DeleteAfterTimeout Mode = "DeleteAfterTimeout"
	// AllowCompletion waits for pods and deletes none.
	AllowCompletion Mode = "AllowCompletion"
)

// Config is the content of the file, with defaults where it says nothing.
type Config struct {
	// SystemNamespaces are never touched.
	SystemNamespaces *regexp.Regexp
	// UserNamespaces are the modes by namespace; ModeOf finds the one of a namespace.
	UserNamespaces []UserNamespace
	// DeleteAfterTimeout is the patience of the mode of that name, from the request of the drain.
	DeleteAfterTimeout time.Duration
	// CustomDrain lets another controller drain nodes; nil if it is not enabled.
	CustomDrain *CustomDrain
	// Quarantine bounds what is taken out of service.
	Quarantine Quarantine
	// Rules decide about events, the first that matches.
	Rules []Rule
}

// UserNamespace is the mode of the namespaces that match a glob.
type UserNamespace struct {
	Name string
	Mode Mode
}

// CustomDrain is how a custom resource is made for a drain, and how its end is recognized.
type CustomDrain struct {
	// TemplatePath is the file of the template, and Template its content.
	TemplatePath string
	Template     string
	// Namespace of the resources, if their kind has one.
	Namespace string
	// GVK is the kind of the resources.
	GVK schema.GroupVersionKind
	// Timeout is how long a resource may take.
	Timeout time.Duration
	// ConditionType and ConditionStatus are the condition that means that the drain is complete.
	ConditionType, ConditionStatus string
}

// Quarantine bounds what is taken out of service.
type Quarantine struct {
	// MaxShare is the largest share of nodes, in percent, that may be cordoned at once. One node always may.
	MaxShare float64
	// Retention is the age from which on events are only recorded.
	Retention time.Duration
}

// Rule decides about the unhealthy events that its expression matches.
type Rule struct {
	// Name for people.
	Name string
	// When is an expression in CEL over the variable event.
	When string
	// Quarantine and Drain are what is done.
	Quarantine, Drain bool
	// Where is the place of the rule in the file, for messages.
	Where string
}

// Defaults.
const (
	DefaultSystemNamespaces   = "^(kube-system|gpu-operator)"
	DefaultDeleteAfterMinutes = 60
	DefaultMaxShare           = 10.0
	DefaultRetention          = 24 * time.Hour
)

// longest is the longest time that can be set anywhere in the file.
const longest = 365 * 24 * time.Hour

// matchesNothing is a regular expression that no namespace matches.
const matchesNothing = `[^\x{0}-\x{10FFFF}]`

// Default is the configuration without a file: pods of all namespaces but the system's are evicted at once.
func Default() *Config {
	return &Config{
		SystemNamespaces:   regexp.MustCompile(DefaultSystemNamespaces),
		UserNamespaces:     []UserNamespace{{Name: "*", Mode: Immediate}},
		DeleteAfterTimeout: DefaultDeleteAfterMinutes * time.Minute,
		Quarantine:         Quarantine{MaxShare: DefaultMaxShare, Retention: DefaultRetention},
	}
}

// file is the file as it is written.
type file struct {
	SystemNamespaces          *string       `toml:"systemNamespaces"`
	DeleteAfterTimeoutMinutes *int64        `toml:"deleteAfterTimeoutMinutes"`
	UserNamespaces            []userEntry   `toml:"userNamespaces"`
	CustomDrain               customSection `toml:"customDrain"`
	Quarantine                struct {
		MaxShare  *string `toml:"maxShare"`
		Retention *string `toml:"retention"`
	} `toml:"quarantine"`
	Rules []ruleEntry `toml:"rules"`
}

type userEntry struct {
	Name string `toml:"name"`
	Mode string `toml:"mode"`
}

type customSection struct {
	Enabled               bool   `toml:"enabled"`
	TemplateMountPath     string `toml:"templateMountPath"`
	TemplateFileName      string `toml:"templateFileName"`
	Namespace             string `toml:"namespace"`
	APIGroup              string `toml:"apiGroup"`
	Version               string `toml:"version"`
	Kind                  string `toml:"kind"`
	Timeout               string `toml:"timeout"`
	StatusConditionType   string `toml:"statusConditionType"`
	StatusConditionStatus string `toml:"statusConditionStatus"`
}

type ruleEntry struct {
	Name       string `toml:"name"`
	When       string `toml:"when"`
	Quarantine *bool  `toml:"quarantine"`
	Drain      *bool  `toml:"drain"`
}

func newFile() file {
	return file{CustomDrain: customSection{
		TemplateMountPath: "/etc/drain-templates", TemplateFileName: "drain-template.yaml", Namespace: "nvsentinel",
		APIGroup: "nvsentinel.nvidia.com", Version: "v1alpha1", Kind: "DrainRequest", Timeout: "3600s",
		StatusConditionType: "DrainComplete", StatusConditionStatus: "True",
	}}
}

// Load reads a file, and the template that it names.
func Load(name string) (*Config, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--drain-config: %w", err)
	}
	c, err := Parse(name, data)
	if err != nil || c.CustomDrain == nil {
		return c, err
	}
	template, err := os.ReadFile(c.CustomDrain.TemplatePath)
	if err != nil {
		return nil, fmt.Errorf("%s: customDrain.templateFileName: %w", name, err)
	}
	c.CustomDrain.Template = string(template)
	return c, nil
}

// Parse reads the content of a file of that name. It does not read the template.
func Parse(name string, data []byte) (*Config, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // some editors begin files with it
	f := newFile()
	decoder := toml.NewDecoder(strings.NewReader(string(data))).DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		return nil, located(name, data, err)
	}
	content := map[string]any{}
	if err := toml.Unmarshal(data, &content); err != nil {
		return nil, located(name, data, err)
	}
	r := &reading{name: name, lines: index(data), config: Default()}
	r.config.UserNamespaces = nil // with a file, namespaces that it does not name have AllowCompletion
	r.checkSpelling(reflect.TypeFor[file](), content, "")
	r.read(f)
	if len(r.wrong) > 0 {
		return nil, errors.Join(r.wrong...)
	}
	return r.config, nil
}

// located names the file, the line and the key of what could not be decoded.
func located(name string, data []byte, err error) error {
	if unknown := (*toml.StrictMissingError)(nil); errors.As(err, &unknown) {
		var all []error
		for i := range unknown.Errors {
			row, _ := unknown.Errors[i].Position()
			all = append(all, fmt.Errorf("%s:%d: unknown key %s", name, row, strings.Join(unknown.Errors[i].Key(), ".")))
		}
		return errors.Join(all...)
	}
	if wrong := (*toml.DecodeError)(nil); errors.As(err, &wrong) {
		row, _ := wrong.Position()
		isTOML := toml.Unmarshal(data, &map[string]any{}) == nil // so that a value is of another type
		switch key, want := strings.Join(wrong.Key(), "."), wanted(wrong.Key()); {
		case isTOML && want != "":
			return fmt.Errorf("%s:%d: %s: must be %s", name, row, key, want)
		case key != "":
			return fmt.Errorf("%s:%d: %s: %w", name, row, key, err)
		}
		return fmt.Errorf("%s:%d: %w", name, row, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}

// wanted says in words what the value of a key has to be, or nothing if there is no such key.
func wanted(key toml.Key) string {
	t := reflect.TypeFor[file]()
	for _, part := range key {
		for t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return ""
		}
		field, ok := fieldOf(t, func(name string) bool { return name == part })
		if !ok {
			return ""
		}
		if t = field.Type; t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	if len(key) == 0 {
		return ""
	}
	return wantedOf(t, key[len(key)-1])
}

// wantedOf says in words what a value of a type has to be.
func wantedOf(t reflect.Type, key string) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int64:
		return "a whole number"
	case reflect.String:
		return "text in quotes"
	case reflect.Slice:
		return "tables that begin with [[" + key + "]]"
	}
	return "a table that begins with [" + key + "]"
}

// fieldOf is the field of a table whose key is the one that is looked for.
func fieldOf(t reflect.Type, is func(key string) bool) (reflect.StructField, bool) {
	fields := reflect.VisibleFields(t)
	at := slices.IndexFunc(fields, func(f reflect.StructField) bool { return is(f.Tag.Get("toml")) })
	if at < 0 {
		return reflect.StructField{}, false
	}
	return fields[at], true
}

// reading checks the values of one file.
type reading struct {
	name   string
	lines  map[string]int
	config *Config
	wrong  []error
}

// where is the place of a key in the file, and the key.
func (r *reading) where(key string) string { return r.place(key) + ": " + key }

// place is the place of a key in the file. One that is not there, or is in an inline table, is where its table is.
func (r *reading) place(key string) string {
	for around := key; around != ""; around = around[:max(0, strings.LastIndexAny(around, ".["))] {
		if line := max(r.lines[around], r.lines[around+"[0]"]); line > 0 {
			return fmt.Sprintf("%s:%d", r.name, line)
		}
	}
	return r.name
}

func (r *reading) refuse(key, format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Errorf("%s: %s", r.where(key), fmt.Sprintf(format, args...)))
}

// checkSpelling refuses what the decoder takes for something else. Keys in other upper and lower case letters are the same for it, so that one of two
// spellings of a key would silently replace the other. t is the type of the table, and prefix its key with a dot.
func (r *reading) checkSpelling(t reflect.Type, table map[string]any, prefix string) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		field, ok := fieldOf(t, func(name string) bool { return strings.EqualFold(name, key) })
		if !ok {
			continue // the decoder has refused it
		}
		if name := field.Tag.Get("toml"); name != key {
			r.wrong = append(r.wrong, fmt.Errorf("%s: unknown key %s: write %s", r.place(prefix+key), prefix+key, name))
			continue
		}
		inner, isTable := table[key].(map[string]any)
		list, isList := table[key].([]any)
		switch kind := field.Type.Kind(); {
		case isTable && kind == reflect.Struct:
			r.checkSpelling(field.Type, inner, prefix+key+".")
		case isTable || isList && kind != reflect.Slice: // the decoder takes one table for a list, and the last one of a list for the table
			r.refuse(prefix+key, "must be %s", wantedOf(field.Type, key))
		}
		for i, entry := range list {
			if inner, ok := entry.(map[string]any); ok && field.Type.Kind() == reflect.Slice {
				r.checkSpelling(field.Type.Elem(), inner, fmt.Sprintf("%s%s[%d].", prefix, key, i))
			}
		}
	}
}

func (r *reading) read(f file) {
	if f.SystemNamespaces != nil {
		text := cmp.Or(*f.SystemNamespaces, matchesNothing) // an empty expression would match every namespace
		expression, err := regexp.Compile(text)
		if err != nil {
			r.refuse("systemNamespaces", "%q is not a regular expression: %v", *f.SystemNamespaces, err)
		}
		r.config.SystemNamespaces = expression
	}
	if minutes := f.DeleteAfterTimeoutMinutes; minutes != nil {
		if most := int64(longest / time.Minute); *minutes < 1 || *minutes > most {
			r.refuse("deleteAfterTimeoutMinutes", "%d: use 1 to %d", *minutes, most)
		}
		r.config.DeleteAfterTimeout = time.Duration(*minutes) * time.Minute
	}
	r.readModes(f)
	r.readCustom(f)
	r.readQuarantine(f)
	r.readRules(f)
}

func (r *reading) readModes(f file) {
	if len(f.UserNamespaces) == 0 {
		return
	}
	seen := map[string]bool{}
	for i, u := range f.UserNamespaces {
		key := fmt.Sprintf("userNamespaces[%d]", i)
		if _, err := path.Match(u.Name, ""); err != nil || !namespaces.MatchString(u.Name) {
			r.refuse(key+".name", "%q is not a name or glob of namespaces", u.Name)
		}
		if seen[u.Name] {
			r.refuse(key+".name", "%q is there twice", u.Name)
		}
		seen[u.Name] = true
		switch Mode(u.Mode) {
		case Immediate, DeleteAfterTimeout, AllowCompletion:
		default:
			r.refuse(key+".mode", "%q: use %s, %s or %s", u.Mode, Immediate, DeleteAfterTimeout, AllowCompletion)
		}
		r.config.UserNamespaces = append(r.config.UserNamespaces, UserNamespace{Name: u.Name, Mode: Mode(u.Mode)})
	}
	if f.CustomDrain.Enabled {
		r.refuse("customDrain.enabled", "a custom drain and modes of userNamespaces exclude each other: remove one of them")
	}
}

// readCustom checks the section also while it is not enabled: a mistake should show before the day on which it is.
func (r *reading) readCustom(f file) {
	s := f.CustomDrain
	name := func(key, value string, wrong []string) {
		if len(wrong) > 0 {
			r.refuse("customDrain."+key, "%q: %s", value, strings.Join(wrong, "; "))
		}
	}
	name("namespace", s.Namespace, validation.IsDNS1123Label(s.Namespace))
	name("apiGroup", s.APIGroup, validation.IsDNS1123Subdomain(s.APIGroup))
	name("version", s.Version, validation.IsDNS1035Label(s.Version))
	if !kindName.MatchString(s.Kind) {
		r.refuse("customDrain.kind", "%q is not the name of a kind, such as DrainRequest", s.Kind)
	}
	if reserved(s.APIGroup) {
		r.refuse("customDrain.apiGroup", "%q belongs to Kubernetes or to Ebb: use the group of your own resource", s.APIGroup)
	}
	if s.TemplateFileName == "" || filepath.Base(s.TemplateFileName) != s.TemplateFileName || s.TemplateFileName == ".." {
		r.refuse("customDrain.templateFileName", "%q is not the name of a file in customDrain.templateMountPath", s.TemplateFileName)
	}
	if s.TemplateMountPath == "" {
		r.refuse("customDrain.templateMountPath", "set the directory of the template")
	}
	timeout, err := time.ParseDuration(s.Timeout)
	if err != nil || timeout < time.Second || timeout > longest {
		r.refuse("customDrain.timeout", "%q is not a duration from 1s to 8760h, such as 3600s or 1h", s.Timeout)
	}
	if s.StatusConditionType == "" {
		r.refuse("customDrain.statusConditionType", "set the type of the condition that means that the drain is complete")
	}
	if status := s.StatusConditionStatus; status != "True" && status != "False" && status != "Unknown" {
		r.refuse("customDrain.statusConditionStatus", "%q: use True, False or Unknown", status)
	}
	if !s.Enabled {
		return
	}
	r.config.CustomDrain = &CustomDrain{
		TemplatePath: filepath.Join(s.TemplateMountPath, s.TemplateFileName), Namespace: s.Namespace,
		GVK: schema.GroupVersionKind{Group: s.APIGroup, Version: s.Version, Kind: s.Kind}, Timeout: timeout,
		ConditionType: s.StatusConditionType, ConditionStatus: s.StatusConditionStatus,
	}
}

// namespaces are names of namespaces and globs of them. Another one would match none, and its mode would never apply.
var namespaces = regexp.MustCompile(`^[a-z0-9*?\[\]\\^-]+$`)

var kindName = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`)

// reserved reports whether a group has objects that a template must never make.
func reserved(group string) bool {
	return group == "ebb.dev" || group == "k8s.io" || strings.HasSuffix(group, ".k8s.io") || !strings.Contains(group, ".")
}

func (r *reading) readQuarantine(f file) {
	if text := f.Quarantine.MaxShare; text != nil {
		number, percent := strings.CutSuffix(*text, "%")
		share, err := strconv.ParseFloat(number, 64)
		if !percent || err != nil || !(share >= 0 && share <= 100) {
			r.refuse("quarantine.maxShare", "%q is not a share of the nodes, such as 10%%", *text)
		}
		r.config.Quarantine.MaxShare = share
	}
	if text := f.Quarantine.Retention; text != nil {
		retention, err := time.ParseDuration(*text)
		if err != nil || retention < time.Minute || retention > longest {
			r.refuse("quarantine.retention", "%q is not a duration from 1m to 8760h, such as 24h", *text)
		}
		r.config.Quarantine.Retention = retention
	}
}

func (r *reading) readRules(f file) {
	seen := map[string]bool{}
	for i, e := range f.Rules {
		key := fmt.Sprintf("rules[%d]", i)
		switch {
		case e.Name == "":
			r.refuse(key, "set a name")
		case seen[e.Name]:
			r.refuse(key+".name", "%q is there twice", e.Name)
		}
		seen[e.Name] = true
		if e.When == "" {
			r.refuse(key, "set when, an expression such as event.checkName == \"GpuXidError\"")
		}
		if e.Quarantine == nil || e.Drain == nil {
			r.refuse(key, "set quarantine and drain to true or false")
			continue
		}
		if *e.Drain && !*e.Quarantine {
			r.refuse(key+".drain", "a node that is drained is quarantined too: set quarantine = true")
		}
		r.config.Rules = append(r.config.Rules, Rule{Name: e.Name, When: e.When, Quarantine: *e.Quarantine, Drain: *e.Drain, Where: r.where(key + ".when")})
	}
}
