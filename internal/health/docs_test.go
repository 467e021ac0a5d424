package health_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/health/render"
)

func TestTheConfigurationsInTheDocumentationWork(t *testing.T) {
	for page, want := range map[string]int{"health-events.md": 1, "custom-drains.md": 1, "pods.md": 1} {
		text, err := os.ReadFile(filepath.Join("../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		blocks := strings.Split(string(text), "\n```toml\n")[1:]
		if len(blocks) != want {
			t.Errorf("%s has %d configurations, want %d", page, len(blocks), want)
		}
		for _, block := range blocks {
			block, _, _ = strings.Cut(block, "\n```\n")
			config, err := drainconfig.Parse(page, []byte(block))
			if err != nil {
				t.Error(err)
				continue
			}
			if _, err := health.CompileRules(config.Rules); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestTheExamplesWork(t *testing.T) {
	for _, example := range []string{"custom-drain", "slurm"} {
		dir := filepath.Join("../../examples", example)
		text, err := os.ReadFile(filepath.Join(dir, "drain.toml"))
		if os.IsNotExist(err) {
			text, err = []byte("[customDrain]\nenabled = true\n"), nil
		}
		if err != nil {
			t.Fatal(err)
		}
		config, err := drainconfig.Parse("drain.toml", text)
		if err != nil {
			t.Fatal(err)
		}
		template, err := os.ReadFile(filepath.Join(dir, "drain-template.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := render.Parse("drain-template.yaml", string(template), config.CustomDrain.GVK, config.CustomDrain.Namespace); err != nil {
			t.Errorf("%s: %v", example, err)
		}
	}
	bridge, err := os.ReadFile("../../examples/bridge/main.go")
	if err != nil || strings.Count(string(bridge), "\n") >= 100 {
		t.Errorf("the smallest bridge has %d lines, %v", strings.Count(string(bridge), "\n"), err)
	}
}

// FuzzResourceName: every name is valid, and different attempts have different ones.
func FuzzResourceName(f *testing.F) {
	f.Add("n1", "e1", int64(1))
	f.Add("n1.example.com", "GPU_79", int64(2))
	f.Fuzz(func(t *testing.T, node, id string, attempt int64) {
		if attempt < 1 || attempt > 98 {
			t.Skip()
		}
		name := health.ResourceName(node, id, attempt)
		if len(name) > 63 || name == health.ResourceName(node, id, attempt+1) || strings.ToLower(name) != name {
			t.Errorf("%q, %q, %d: %s", node, id, attempt, name)
		}
	})
}
