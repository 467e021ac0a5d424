package filesink

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// longest is how long each half of a directory's name may be: file systems take 255 bytes, a server's names may need more when they are
// escaped.
const longest = 120

// directoryOf is the directory of a table. Different tables have different ones, and none is called like one of the sink's own.
func directoryOf(t stream.Table) string { return escape(t.Schema) + "." + escape(t.Name) }

// escape keeps letters, digits, _ and -, and writes every other byte as %XX: nothing that means anything in a path is left. What gets too
// long ends in a digest instead.
func escape(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	if b.Len() <= longest {
		return b.String()
	}
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%s~%x", b.String()[:longest-33], sum[:16])
}
