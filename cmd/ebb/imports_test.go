package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/ebb-dev/ebb/"

// framework are the packages that know no kind of work: kinds register with them.
var framework = []string{"internal/access", "internal/apiserver", "internal/coordinator", "internal/drain", "internal/fleet", "internal/kind", "internal/lease", "internal/node"}

// A kind can be changed or removed without the others, and a new one needs no change of the framework.
func TestKindsImportNeitherEachOtherNorDoesTheFrameworkImportThem(t *testing.T) {
	imports, kindPackages := readImports(t, "../..")
	if len(kindPackages) != len(kinds) {
		t.Errorf("packages that declare a kind: %q; %d kinds are registered", kindPackages, len(kinds))
	}
	for _, name := range framework {
		if imports[name] == nil {
			t.Errorf("%s does not exist", name)
		}
	}
	for _, wrong := range wrongImports(imports, kindPackages, framework) {
		t.Error(wrong)
	}
}

func TestWrongImportsAreFound(t *testing.T) {
	imports := map[string][]string{
		"internal/a":        {"internal/kind", "internal/shared"},
		"internal/a/wire":   {"internal/b/wire"},
		"internal/ab":       {"internal/a/wire"}, // a prefix of its name is not its parent
		"internal/b":        {"internal/b/wire", "internal/kind"},
		"internal/b/wire":   nil,
		"internal/shared":   {"internal/b"},
		"internal/kind":     {"internal/drain"},
		"internal/drain":    {"internal/helper"},
		"internal/helper":   {"internal/a/wire"},
		"internal/harmless": nil,
	}
	got := wrongImports(imports, []string{"internal/a", "internal/b"}, []string{"internal/drain", "internal/harmless"})
	want := []string{
		"internal/a: imports kind internal/b: internal/a → internal/shared → internal/b",
		"internal/a/wire: imports kind internal/b: internal/a/wire → internal/b/wire",
		"internal/b: imports kind internal/a: internal/b → internal/kind → internal/drain → internal/helper → internal/a/wire",
		"internal/drain: imports kind internal/a: internal/drain → internal/helper → internal/a/wire",
		"internal/drain: imports kind internal/b: internal/drain → internal/helper → internal/a/wire → internal/b/wire",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// wrongImports returns, sorted, the packages of kinds that import another kind and those of the framework that import any, directly or
// not, each with the path of imports.
func wrongImports(imports map[string][]string, kindPackages, framework []string) []string {
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(imports)) {
		own := ownerOf(name, kindPackages)
		if own == "" && ownerOf(name, framework) == "" {
			continue
		}
		paths := importPaths(imports, name)
		for _, other := range kindPackages {
			if other == own {
				continue
			}
			var shortest []string
			for _, imported := range slices.Sorted(maps.Keys(paths)) {
				if p := paths[imported]; ownerOf(imported, kindPackages) == other && (shortest == nil || len(p) < len(shortest)) {
					shortest = p
				}
			}
			if shortest != nil {
				wrong = append(wrong, fmt.Sprintf("%s: imports kind %s: %s", name, other, strings.Join(shortest, " → ")))
			}
		}
	}
	return wrong
}

// ownerOf returns which of the packages a package is, or is below.
func ownerOf(name string, packages []string) string {
	for _, p := range packages {
		if name == p || strings.HasPrefix(name, p+"/") {
			return p
		}
	}
	return ""
}

// importPaths returns a shortest path of imports to every package that a package depends on.
func importPaths(imports map[string][]string, from string) map[string][]string {
	paths := map[string][]string{from: {from}}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, next := range imports[queue[0]] {
			if paths[next] == nil {
				paths[next] = append(slices.Clone(paths[queue[0]]), next)
				queue = append(queue, next)
			}
		}
	}
	return paths
}

// readImports reads the imports of every package below internal, without those of tests, and finds the packages that declare a kind.
func readImports(t *testing.T, root string) (imports map[string][]string, kindPackages []string) {
	t.Helper()
	imports = map[string][]string{}
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		p, err := build.ImportDir(dir, 0)
		if none := (*build.NoGoError)(nil); errors.As(err, &none) {
			return nil
		}
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, dir)
		if err != nil {
			return err
		}
		name := path.Clean(filepath.ToSlash(relative))
		imports[name] = []string{}
		for _, imported := range p.Imports {
			if own, ok := strings.CutPrefix(imported, module); ok {
				imports[name] = append(imports[name], own)
			}
		}
		declares, err := declaresKind(p)
		if declares {
			kindPackages = append(kindPackages, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return imports, kindPackages
}

// declaresKind reports whether a package has the function Kind() kind.Kind.
func declaresKind(p *build.Package) (bool, error) {
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || fn.Name.Name != "Kind" || fn.Type.Results == nil || len(fn.Type.Results.List) != 1 {
				continue
			}
			if s, ok := fn.Type.Results.List[0].Type.(*ast.SelectorExpr); ok && s.Sel.Name == "Kind" {
				return true, nil
			}
		}
	}
	return false, nil
}
