package stream

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var positionText = regexp.MustCompile(`^(\d{1,10}-\d{1,10}-)?\d+$`)

// ParsePosition parses a position as people write it: a GTID domain-server-sequence, or only its sequence number.
func ParsePosition(text string) (Position, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text[strings.LastIndexByte(text, '-')+1:], 10, 63)
	if err != nil || !positionText.MatchString(text) {
		return 0, fmt.Errorf("start position %q is neither a GTID such as 0-1-100 nor the sequence number of one", text)
	}
	return Position(n), nil
}
