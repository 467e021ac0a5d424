package slurm

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Names maps names of nodes in Ebb to names in Slurm: a table first, then a rule, then the name as it is.
type Names struct {
	table       map[string]string
	pattern     *regexp.Regexp
	replacement string
}

// validName is what can be passed to Slurm as one node. Slurm itself expands brackets and commas.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// NewNames reads a table, a file with a name in Ebb and a name in Slurm on each line, and a rule PATTERN=REPLACEMENT. Both may be empty.
func NewNames(tableFile, rule string) (*Names, error) {
	n := &Names{table: map[string]string{}}
	if rule != "" {
		pattern, replacement, ok := strings.Cut(rule, "=")
		compiled, err := regexp.Compile("^(?:" + pattern + ")$")
		if !ok || err != nil {
			return nil, fmt.Errorf("--node-rule %q is not PATTERN=REPLACEMENT, such as (.*)\\.example\\.com=$1", rule)
		}
		n.pattern, n.replacement = compiled, replacement
	}
	if tableFile == "" {
		return n, nil
	}
	f, err := os.Open(tableFile)
	if err != nil {
		return nil, fmt.Errorf("--node-table: %w", err)
	}
	defer f.Close()
	of := map[string]string{} // names in Ebb by those in Slurm
	lines := bufio.NewScanner(f)
	for number := 1; lines.Scan(); number++ {
		text, _, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "\ufeff"), "#") // some editors begin files with it
		fields := strings.Fields(text)
		switch {
		case len(fields) == 0:
			continue
		case len(fields) != 2 || !validName.MatchString(fields[1]):
			return nil, fmt.Errorf("%s:%d: %q is not a name in Ebb and a name in Slurm", tableFile, number, lines.Text())
		case v1alpha1.ValidateNodeName(fields[0]) != nil:
			return nil, fmt.Errorf("%s:%d: %w", tableFile, number, v1alpha1.ValidateNodeName(fields[0]))
		case n.table[fields[0]] != "":
			return nil, fmt.Errorf("%s:%d: %s is there twice", tableFile, number, fields[0])
		case of[fields[1]] != "":
			return nil, fmt.Errorf("%s:%d: %s is the name of %s already: each node needs its own", tableFile, number, fields[1], of[fields[1]])
		}
		n.table[fields[0]], of[fields[1]] = fields[1], fields[0]
	}
	return n, lines.Err()
}

// Slurm is the name of a node in Slurm.
func (n *Names) Slurm(node string) (string, error) {
	name := n.table[node]
	if name == "" && n.pattern != nil && n.pattern.MatchString(node) {
		name = n.pattern.ReplaceAllString(node, n.replacement)
	} else if name == "" {
		name = node
	}
	if !validName.MatchString(name) {
		return "", fmt.Errorf("%w: node %s becomes %q, which is not the name of a node", ErrUnknownNode, node, name)
	}
	return name, nil
}
