// Package docs checks the documentation against the repository.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// quoted is text in back-quotes, on one line.
	quoted = regexp.MustCompile("`([^`\n]+)`")
	// repositoryPath is a path from the root of the repository; the group is without a pattern at its end, such as /*.yaml.
	repositoryPath = regexp.MustCompile(`^((?:api|cmd|config|docs|internal|test)/[A-Za-z0-9_./-]*)(?:\*.*)?$`)
	// linked is the target of a link to a file, without its anchor.
	linked = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	// exported is a name of a package, such as fleet.Fleet.
	exported = regexp.MustCompile(`^([a-z]+)\.([A-Z][A-Za-z]*)$`)
	// declared is a Go file, and names of functions that are declared in it.
	declared = regexp.MustCompile("`([a-z0-9/_]+[.]go)`: ((?:`[A-Za-z.]+`(?:, )?)+)")
)

// pages are the documents with paths of the repository, by their path from its root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		names, err := fs.Glob(os.DirFS(".."), pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(filepath.Join("..", name))
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(text)
		}
	}
	if texts["README.md"] == "" || texts["docs/architecture.md"] == "" {
		t.Fatal("README.md and docs/architecture.md are not among the pages")
	}
	return texts
}

// pathsIn are the paths of the repository that a text has in back-quotes.
func pathsIn(text string) []string {
	var paths []string
	for _, match := range quoted.FindAllStringSubmatch(text, -1) {
		for word := range strings.FieldsSeq(match[1]) {
			if path := repositoryPath.FindStringSubmatch(strings.TrimPrefix(word, "./")); path != nil {
				paths = append(paths, path[1])
			}
		}
	}
	return paths
}

func TestPathsInTheDocumentationExist(t *testing.T) {
	found := 0
	for page, text := range pages(t) {
		for _, path := range pathsIn(text) {
			found++
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s names `%s`, which does not exist", page, path)
			}
		}
	}
	if found == 0 {
		t.Error("no page names a path")
	}
}

func TestLinksInTheDocumentationLeadToFiles(t *testing.T) {
	found := 0
	for page, text := range pages(t) {
		for _, match := range linked.FindAllStringSubmatch(text, -1) {
			found++
			if _, err := os.Stat(filepath.Join("..", filepath.Dir(page), match[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, match[1])
			}
		}
	}
	if found == 0 {
		t.Error("no page has a link")
	}
}

func TestFunctionsInTheDocumentationExist(t *testing.T) {
	found := 0
	for page, text := range pages(t) {
		for _, match := range declared.FindAllStringSubmatch(text, -1) {
			functions := functionsIn(t, match[1])
			for _, name := range quoted.FindAllStringSubmatch(match[2], -1) {
				found++
				if !functions[name[1]] {
					t.Errorf("%s names the function %s, which %s does not declare", page, name[1], match[1])
				}
			}
		}
	}
	if found == 0 {
		t.Error("no page names a function")
	}
}

// functionsIn are the functions that a file declares; methods with their types.
func functionsIn(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", path), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			name = strings.TrimPrefix(types.ExprString(f.Recv.List[0].Type), "*") + "." + name
		}
		names[name] = true
	}
	return names
}

func TestExportedNamesInTheDocumentationExist(t *testing.T) {
	found := 0
	for page, text := range pages(t) {
		for _, match := range quoted.FindAllStringSubmatch(text, -1) {
			name := exported.FindStringSubmatch(match[1])
			if name == nil {
				continue
			}
			dir := filepath.Join("..", "internal", name[1])
			if _, err := os.Stat(dir); err != nil {
				continue // not a package of Ebb
			}
			found++
			if !declares(t, dir, name[2]) {
				t.Errorf("%s names %s, which does not exist", page, match[1])
			}
		}
	}
	if found == 0 {
		t.Error("no page names anything of a package")
	}
}

// declares says whether a package declares a name at its top level.
func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if file.Scope.Lookup(name) != nil {
			return true
		}
	}
	return false
}

func TestWhatLooksLikeAPath(t *testing.T) {
	for text, want := range map[string]string{
		"`internal/drain/plan.go`":        "internal/drain/plan.go",
		"`config/crd/*.yaml`":             "config/crd/",
		"`go test ./internal/lease`":      "internal/lease",
		"internal/drain":                  "",
		"`ebb.dev/fenced-epoch`":          "",
		"`docs/` and `nodes/NAME/config`": "docs/",
	} {
		if got := strings.Join(pathsIn(text), " "); got != want {
			t.Errorf("paths in %s: got %q, want %q", text, got, want)
		}
	}
}
