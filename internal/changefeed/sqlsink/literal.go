package sqlsink

import (
	"encoding/hex"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// name is an identifier, quoted.
func name(text string) string { return "`" + strings.ReplaceAll(text, "`", "``") + "`" }

// full is the name of a table with its schema, quoted.
func full(t stream.Table) string { return name(t.Schema) + "." + name(t.Name) }

// quote appends a string. By the sql_mode of the session, only the quote has to be escaped, by doubling it.
func quote[T string | []byte](to []byte, text T) []byte {
	to = append(to, '\'')
	from := 0
	for i := range len(text) {
		if text[i] == '\'' {
			to, from = append(to, text[from:i+1]...), i // which is written again
		}
	}
	return append(append(to, text[from:]...), '\'')
}

// literal appends a value as it must be written to be stored in a column just as it is.
func (c *column) literal(to []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case nil:
		return append(to, "NULL"...), nil
	case int64:
		return strconv.AppendInt(to, v, 10), nil
	case uint64:
		return strconv.AppendUint(to, v, 10), nil
	case int:
		return strconv.AppendInt(to, int64(v), 10), nil
	case bool:
		if v {
			return append(to, '1'), nil
		}
		return append(to, '0'), nil
	case float32:
		return float(to, float64(v))
	case float64:
		return float(to, v)
	case string:
		return c.text(to, v)
	case []byte:
		return c.bytes(to, v), nil
	case time.Time:
		return quote(to, v.UTC().Format("2006-01-02 15:04:05.999999")), nil
	}
	return nil, fmt.Errorf("column %s: a value of type %T cannot be written", c.name, value)
}

// bytes appends bytes, or text in another character set than UTF-8, which the server converts if it is another one than that of the column.
func (c *column) bytes(to, data []byte) []byte {
	if c.from != "" {
		to = append(append(to, '_'), c.from...)
	}
	return quote(to, data)
}

// float appends a number in a notation that the server reads as a double. A float is the double of the same value: both to
// store and to compare that is exact, while its shortest decimal is another double.
func float(to []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("the value %v cannot be stored", f)
	}
	return strconv.AppendFloat(to, f, 'e', -1, 64), nil
}

// text appends text. Without an introducer it is bytes: right for columns in UTF-8, for binary ones, and for dates.
func (c *column) text(to []byte, text string) ([]byte, error) {
	switch c.kind {
	case kindDecimal:
		if !isDecimal(text) {
			return nil, fmt.Errorf("column %s: %q is not a decimal", c.name, text)
		}
		return append(to, text...), nil
	case kindParsed:
		return quote(append(to, "_latin1"...), text), nil
	case kindPacked:
		data, err := packed(text)
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", c.name, err)
		}
		return quote(to, data), nil
	case kindForeignText:
		return quote(append(to, "_utf8mb4"...), text), nil
	}
	return quote(to, text), nil
}

// packed are the bytes of an IP address or a UUID.
func packed(text string) ([]byte, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.AsSlice(), nil
	}
	return hex.DecodeString(strings.ReplaceAll(text, "-", ""))
}

// isDecimal keeps anything but a number out of a statement, since it is written without quotes.
func isDecimal(text string) bool {
	digits := false
	for i := range len(text) {
		switch c := text[i]; {
		case '0' <= c && c <= '9':
			digits = true
		case c == '.' || i == 0 && (c == '-' || c == '+'):
		default:
			return false
		}
	}
	return digits
}
