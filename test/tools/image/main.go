// Command image writes an OCI image with nothing but the ebb program in it. `make image` runs it; no container engine is needed.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	program := flag.String("program", "", "the ebb program, linked statically")
	out := flag.String("out", "", "directory to write the image to, in the OCI layout; it is replaced")
	version := flag.String("version", "", "version label of the image")
	arch := flag.String("arch", "amd64", "architecture that the program is for")
	flag.Parse()
	if err := run(*program, *out, *version, *arch); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(program, out, version, arch string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := layerOf(data)
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layer)
	if err != nil {
		return err
	}
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	config.Config = v1.Config{
		Entrypoint: []string{"/ebb"}, User: "65532:65532", WorkingDir: "/",
		Labels: map[string]string{"org.opencontainers.image.title": "ebb", "org.opencontainers.image.version": version},
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	path, err := layout.Write(out, empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendImage(image); err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s %s\n", out, digest)
	return nil
}

// layerOf is a layer with the program. Times are zero, so that the same program makes the same image.
func layerOf(program []byte) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "ebb", Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}); err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }, tarball.WithMediaType(types.OCILayer))
}
