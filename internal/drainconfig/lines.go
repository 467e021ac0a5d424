package drainconfig

import (
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// index finds the line of every key of a file that could be decoded. Entries of lists of tables have their number in the key.
func index(data []byte) map[string]int {
	lines := map[string]int{}
	entries := map[string]int{}
	parser := unstable.Parser{}
	parser.Reset(data)
	prefix := ""
	for parser.NextExpression() {
		node := parser.Expression()
		key, line := keyOf(&parser, node)
		switch node.Kind {
		case unstable.Table:
			prefix = key
			lines[prefix] = line
		case unstable.ArrayTable:
			prefix = fmt.Sprintf("%s[%d]", key, entries[key])
			entries[key]++
			lines[prefix] = line
		case unstable.KeyValue:
			if prefix != "" {
				key = prefix + "." + key
			}
			lines[key] = line
		}
	}
	return lines
}

func keyOf(parser *unstable.Parser, node *unstable.Node) (key string, line int) {
	var parts []string
	for it := node.Key(); it.Next(); {
		part := it.Node()
		if line == 0 {
			line = parser.Shape(part.Raw).Start.Line
		}
		parts = append(parts, string(part.Data))
	}
	return strings.Join(parts, "."), line
}
