package shortname_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ebb-dev/ebb/internal/shortname"
)

func TestNamesFit(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{
		"n1", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 253), strings.Repeat("a", 252) + "b",
		strings.Repeat("a", 46) + "." + strings.Repeat("b", 100), strings.Repeat("a", 40) + "-------." + strings.Repeat("b", 100),
	} {
		got := shortname.Fit(name, 63)
		if len(got) > 63 || len(validation.IsDNS1123Subdomain(got)) > 0 {
			t.Errorf("%s becomes %s", name, got)
		}
		if len(name) <= 63 && got != name {
			t.Errorf("%s fits and becomes %s", name, got)
		}
		if other := seen[got]; other != "" {
			t.Errorf("%s and %s both become %s", name, other, got)
		}
		seen[got] = name
	}
}
