package changefeed

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
)

// secretTimeout bounds the reading of Secrets.
const secretTimeout = 5 * time.Second

// SecretsOf reads Secrets with a client, which must not cache them.
func SecretsOf(c client.Reader) func(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	return func(ctx context.Context, namespace, name string) (map[string][]byte, error) {
		secret := &corev1.Secret{}
		err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret)
		return secret.Data, err
	}
}

// Resolve reads the passwords that a changefeed has in Secrets. It is called before each opening of a source or a sink, so that a
// changed password is used from then on.
func (o Opener) Resolve(ctx context.Context, namespace string, c dispatch.Config) (dispatch.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, secretTimeout)
	defer cancel()
	for _, end := range []struct {
		what string
		ref  dispatch.SecretRef
		to   *dispatch.Password
	}{{"source", c.SourceSecret, &c.SourcePassword}, {"sink", c.SinkSecret, &c.SinkPassword}} {
		if end.ref.Name == "" {
			continue
		}
		password, err := o.secret(ctx, namespace, end.ref)
		if err != nil {
			return c, fmt.Errorf("password of the %s: %w", end.what, err)
		}
		*end.to = password
	}
	return c, nil
}

func (o Opener) secret(ctx context.Context, namespace string, ref dispatch.SecretRef) (dispatch.Password, error) {
	data, err := o.Secret(ctx, namespace, ref.Name)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("there is no Secret %q in namespace %q: create it with key %q, for example with `kubectl create secret generic %s -n %s --from-file=%s=FILE`",
			ref.Name, namespace, ref.Key, ref.Name, namespace, ref.Key)
	}
	if err != nil {
		return "", fmt.Errorf("read Secret %q in namespace %q: %w", ref.Name, namespace, err)
	}
	value, ok := data[ref.Key]
	if !ok {
		return "", fmt.Errorf("there is no key %q in Secret %q in namespace %q: add it, or name another key in the changefeed", ref.Key, ref.Name, namespace)
	}
	password := dispatch.Password(trimNewlines(string(value)))
	if password == "" {
		return "", fmt.Errorf("key %q of Secret %q in namespace %q is empty: set it to the password, or remove the Secret from the changefeed", ref.Key, ref.Name, namespace)
	}
	return password, nil
}

// errUnresolved: Resolve was not called before opening.
var errUnresolved = errors.New("the Secret has not been read")

// either is a password from a Secret, if one is named, or from a file.
func (o Opener) either(ref dispatch.SecretRef, found dispatch.Password, file string) (string, error) {
	if ref.Name == "" {
		return o.password(file)
	}
	if found == "" {
		return "", fmt.Errorf("password in Secret %q: %w", ref.Name, errUnresolved)
	}
	return string(found), nil
}
