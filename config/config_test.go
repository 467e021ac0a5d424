package config

import "testing"

func TestManifestsParse(t *testing.T) {
	for name, load := range map[string]func() (n int, err error){
		"own":      func() (int, error) { c, err := CRDs(); return len(c), err },
		"embedded": func() (int, error) { c, err := EmbeddedCRDs(); return len(c), err },
	} {
		if n, err := load(); err != nil || n == 0 {
			t.Errorf("%s: %d definitions, %v", name, n, err)
		}
	}
}
