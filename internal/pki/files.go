package pki

import "github.com/ebb-dev/ebb/internal/atomicfile"

// WriteSecret writes a file that only its owner may read, whole or not at all.
func WriteSecret(path string, data []byte) error { return atomicfile.WriteSecret(path, data) }
