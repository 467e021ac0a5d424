package filesink

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// longest is the maximum length of each half of a directory's name: file systems allow 255 bytes, and escaped names may be longer.
const longest = 120

// directoryOf is the directory of a table. Different tables have different ones, and none has the name of a directory of the sink itself.
func directoryOf(t stream.Table) string { return escape(t.Schema) + "." + escape(t.Name) }

// escape keeps letters, digits, _ and -, and replaces every other byte by %XX, so that nothing has a meaning in a path. A name that
// becomes too long ends in a digest instead.
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
