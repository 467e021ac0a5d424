package drainconfig_test

import (
	"testing"

	"github.com/ebb-dev/ebb/internal/drainconfig"
)

func TestTheMostSpecificEntryWins(t *testing.T) {
	c, err := drainconfig.Parse("f", []byte(`
[[userNamespaces]]
name = "*"
mode = "Immediate"
[[userNamespaces]]
name = "db-*"
mode = "DeleteAfterTimeout"
[[userNamespaces]]
name = "db-[ab]?"
mode = "Immediate"
[[userNamespaces]]
name = "db-primary"
mode = "AllowCompletion"
`))
	if err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]drainconfig.Mode{
		"web": drainconfig.Immediate, "db-x": drainconfig.DeleteAfterTimeout, "db-primary": drainconfig.AllowCompletion, "db-a1": drainconfig.DeleteAfterTimeout, "db": drainconfig.Immediate,
	} {
		if got, named := c.ModeOf(namespace); got != want || !named {
			t.Errorf("%s: %s, named %t, want %s", namespace, got, named, want)
		}
	}
}

func TestNamespacesWithoutAnEntryRunToCompletionIfThereIsAFile(t *testing.T) {
	c, err := drainconfig.Parse("f", []byte("[[userNamespaces]]\nname = \"web\"\nmode = \"Immediate\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got, named := c.ModeOf("db"); got != drainconfig.AllowCompletion || named {
		t.Errorf("db: %s, named %t", got, named)
	}
	if c, _ = drainconfig.Parse("f", nil); c == nil {
		t.Fatal("an empty file is refused")
	}
	if got, _ := c.ModeOf("web"); got != drainconfig.AllowCompletion {
		t.Errorf("an empty file: %s", got)
	}
	if got, named := drainconfig.Default().ModeOf("web"); got != drainconfig.Immediate || !named {
		t.Errorf("no file: %s, named %t", got, named)
	}
}
