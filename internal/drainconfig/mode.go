package drainconfig

import (
	"path"
	"strings"
)

// ModeOf returns the mode of a namespace, and whether the configuration names the namespace. The most specific entry wins: the name itself,
// then the glob with the most literal characters, then the first one. A namespace without an entry has AllowCompletion.
func (c *Config) ModeOf(namespace string) (mode Mode, named bool) {
	best := -1
	for _, u := range c.UserNamespaces {
		if u.Name == namespace {
			return u.Mode, true
		}
		if ok, err := path.Match(u.Name, namespace); err != nil || !ok {
			continue
		}
		if n := literals(u.Name); n > best {
			best, mode = n, u.Mode
		}
	}
	if best < 0 {
		return AllowCompletion, false
	}
	return mode, true
}

// literals counts the characters of a glob that stand for themselves.
func literals(glob string) int {
	n, class := 0, false
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '\\':
			i++
			n++
		case !strings.ContainsRune("*?", rune(c)):
			n++
		}
	}
	return n
}

// IsSystem reports whether a namespace is never touched.
func (c *Config) IsSystem(namespace string) bool {
	return c.SystemNamespaces != nil && c.SystemNamespaces.MatchString(namespace)
}
