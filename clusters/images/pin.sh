#!/bin/bash
# Replace tags by digests, so that every node runs the same image, whatever is pushed later under the tag.
#
#   clusters/images/pin.sh python:3.12.12-slim-bookworm                      # the base image, in the build files
#   clusters/images/pin.sh REGISTRY/radioplat-cpu:0.1.0 REGISTRY/radioplat-cuda:0.1.0   # after the push, in the manifests
#
# It asks the image's registry, and changes each file of clusters/ that names the image. Again after a push: the new digest.
set -euo pipefail

if (($# == 0)); then
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    exit 2
fi
folder=$(dirname "$(dirname "$(realpath "$0")")")
for image in "$@"; do
    digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image")
    if [[ ! $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
        echo "$image: the registry gives no digest, but: $digest" >&2
        exit 1
    fi
    mapfile -t files < <(grep -rlF --exclude="$(basename "$0")" -- "$image" "$folder")
    if ((${#files[@]} == 0)); then
        echo "$image: no file in $folder names it" >&2
        exit 1
    fi
    name=$(sed 's/[][\.*^$|]/\\&/g' <<<"$image")
    sed -i -E "/^ *#/! s|$name(@sha256:[0-9a-f]{64})?|$image@$digest|" "${files[@]}"
    echo "$image@$digest: ${files[*]#"$folder/"}"
done
