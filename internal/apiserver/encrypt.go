package apiserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/aes"

	"github.com/ebb-dev/ebb/internal/atomicfile"
)

// secretsKeyFile is beside the certificate authority: a backup needs both.
const secretsKeyFile = "secrets.key"

// secretsPrefix begins every Secret in the store, so that a later encryption can be distinguished from this one.
const secretsPrefix = "ebb:aesgcm:v1:"

// secretsTransformer encrypts Secrets in the store with AES-GCM, under a key in a file that is made at the first start. Each
// Secret is written under a key of its own that is derived from it, so that no nonce is used twice however many are written.
func secretsTransformer(dir string) (value.Transformer, error) {
	path := filepath.Join(dir, secretsKeyFile)
	seed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if seed, err = aes.GenerateKey(aes.MinSeedSizeExtendedNonceGCM); err == nil {
			err = atomicfile.WriteSecret(path, seed)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("encryption key of Secrets: %w", err)
	}
	cipher, err := aes.NewHKDFExtendedNonceGCMTransformer(seed)
	if err != nil {
		return nil, fmt.Errorf("encryption key of Secrets in %s: %w", path, err)
	}
	unknown := errors.New("a Secret in etcd is not encrypted with Ebb's key")
	return value.NewPrefixTransformers(unknown, value.PrefixTransformer{Prefix: []byte(secretsPrefix), Transformer: cipher}), nil
}
