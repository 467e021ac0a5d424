// Package config carries the manifests that Ebb installs.
package config

import (
	"embed"
	"fmt"
	"io/fs"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed crd embedded slurm
var files embed.FS

// CRDs are Ebb's own objects, in every home.
func CRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) { return load("crd/ebb.dev_*.yaml") }

// EmbeddedCRDs are the types of a full Kubernetes that the embedded API has to bring itself.
func EmbeddedCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return load("embedded/*.yaml")
}

// SlurmCRDs are the types of the bridge to Slurm, which installs them itself.
func SlurmCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) { return load("slurm/*.yaml") }

func load(pattern string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	paths, err := fs.Glob(files, pattern)
	if err != nil {
		return nil, err
	}
	crds := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(paths))
	for _, path := range paths {
		data, err := files.ReadFile(path)
		if err != nil {
			return nil, err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		crds = append(crds, crd)
	}
	return crds, nil
}
