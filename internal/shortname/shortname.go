// Package shortname makes names that fit where longer ones are not allowed.
package shortname

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// sumLength is how many characters of the sum are used. Two names with the same beginning differ in it, unless one of them was made for that.
const sumLength = 16

// Fit returns the name if it has at most so many characters, and otherwise its beginning and a sum of all of it. limit must be above 20.
// What is valid as a DNS subdomain stays so.
func Fit(name string, limit int) string {
	if len(name) <= limit {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:limit-sumLength-1], "-.") + "-" + hex.EncodeToString(sum[:sumLength/2])
}
